"""Waves, pad and n-gram drafts against hand-worked values and plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.graph.errors import GraphError
from draftline.stages.core import Call, Layout, StageContext
from draftline.stages.draft_ngram import DraftNgram
from draftline.stages.pad import Pad
from draftline.stages.registry import BUILTIN, lookup
from draftline.stages.waves import lane_slots, merge_lanes


def context(**dims: int) -> StageContext:
    return StageContext(torch.device("cpu"), torch.float32, dims, Layout(1, 8))


@settings(max_examples=200, deadline=None)
@given(live=st.lists(st.booleans(), min_size=1, max_size=12), requests=st.integers(1, 8))
def test_waves_serve_every_live_slot_once_in_order(live, requests):
    waves = -(-len(live) // requests)
    lanes = torch.cat([lane_slots(torch.tensor(live), w, requests) for w in range(waves)])
    assert [s for s in lanes.tolist() if s >= 0] == [i for i, x in enumerate(live) if x]


def test_merge_leaves_other_slots_alone():
    table = torch.arange(8).view(4, 2)
    merge_lanes(torch.tensor([2, -1, 0]), (table, torch.tensor([[90, 91], [92, 93], [94, 95]])))
    assert table.tolist() == [[94, 95], [2, 3], [90, 91], [6, 7]]


def test_pad_by_hand():
    outputs = {
        "window": torch.full((3, 8), 77),
        "positions": torch.full((3, 8), 77),
        "live": torch.zeros(3, dtype=torch.bool),
        "accepted": torch.full((3,), 77),
    }
    inputs = {
        "tail": torch.tensor([9, 19, -1]),
        "drafts": torch.tensor([[10, 11, 12], [20, 21, 22], [30, 31, 32]]),
        "position": torch.tensor([99, 5, -1]),
        "depth": torch.tensor([3, 1, -1]),
    }
    Pad(context(W=8))(Call(), inputs, outputs)
    assert outputs["window"].tolist() == [[9, 10, 11, 12, 0, 0, 0, 0], [19, 20, 0, 0, 0, 0, 0, 0], [0] * 8]
    assert outputs["positions"].tolist() == [[99, 100, 101, 102, -1, -1, -1, -1], [5, 6] + [-1] * 6, [-1] * 8]
    assert outputs["live"].tolist() == [True, True, False]
    assert outputs["accepted"].tolist() == [0, 0, 0]


def looked_up(tokens: list[int], k: int, longest: int, shortest: int) -> list[int]:
    """Prompt lookup as a plain loop."""
    for size in range(longest, shortest - 1, -1):
        suffix = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(suffix) == size and tokens[end - size : end] == suffix:
                return tokens[end : end + k]
    return []


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    k=st.integers(1, 6),
    longest=st.integers(1, 4),
    depth=st.integers(0, 6),
)
def test_ngram_equals_a_plain_lookup(tokens, k, longest, depth):
    history = torch.full((2, 32), -1)
    history[1, : len(tokens)] = torch.tensor(tokens)
    outputs = {"drafts": torch.zeros(2, k, dtype=torch.int64), "depth": torch.zeros(2, dtype=torch.int64)}
    inputs = {
        "history": history,
        "position": torch.tensor([-1, len(tokens) - 1]),
        "depth": torch.tensor([-1, min(depth, k)]),
    }
    DraftNgram(context(K=k, L=32), max_ngram=longest, min_ngram=1)(Call(), inputs, outputs)
    wanted = looked_up(tokens, k, longest, 1)
    found = int(outputs["depth"][1])
    assert found == min(depth, k, len(wanted))
    assert outputs["drafts"][1, :found].tolist() == wanted[:found]
    assert int(outputs["depth"][0]) == -1


def test_lookup_names_the_nearest_stage():
    with pytest.raises(GraphError, match=r"unknown stage 'draft.mpt'; did you mean 'draft.mtp'"):
        lookup("draft.mpt")
    with pytest.raises(GraphError, match="has no Verfy; did you mean 'Verify'"):
        lookup("draftline.stages.verify:Verfy")
    with pytest.raises(GraphError, match="cannot import nowhere"):
        lookup("nowhere:Stage")
    with pytest.raises(GraphError, match="no class attribute 'signature'"):
        lookup("draftline.stages.core:Layout")
    with pytest.raises(GraphError, match="neither a registry name nor"):
        lookup("__import__('os'):x y")
    assert lookup("draftline.stages.verify:Verify") is BUILTIN["verify"]
