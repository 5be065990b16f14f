"""Pad rows, finished requests and dummy drafts write nothing that is live; nothing past the limit is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import SIZES, engine_of, tiny_model
from writeset import Watch

from draftline.runtime.request import Request
from draftline.stages.caches.core import ring_length


def watched(engine) -> list[tuple[torch.Tensor, str, int]]:
    """(cache, kind, size): rings with their length per slot, pages with their entries per page."""
    out = []
    target, g = engine.model.target, engine.model.geometry
    for layer, ratio in zip(target.caches, target.config.compress_ratios, strict=True):
        out.append((layer.window, "ring", ring_length(target.config.sliding_window, g)))
        if ratio:
            n = ratio * target.config.state_width(ratio)
            out.append((layer.state, "ring", ring_length(n, g)))
            out.append((layer.entries, f"page/{ratio}", g.page_size // ratio))
        if layer.index_keys is not None:
            out.append((layer.index_state, "ring", ring_length(n, g)))
            out.append((layer.index_keys, f"page/{ratio}", g.page_size // ratio))
    out.append((engine.model.drafter.cache.window, "ring", ring_length(target.config.sliding_window, g)))
    return out


@pytest.mark.parametrize("k", [0, 1, 3, 7, 9])
def test_every_step_writes_exactly_its_own_rows(k):
    sizes = replace(SIZES, num_speculative_tokens=k, max_num_seqs=4, max_model_len=160)
    engine = engine_of(tiny_model(sizes), sizes)
    caches = watched(engine)
    lengths = {0: 3, 1: 125, 2: 150, 3: 158}  # request 2 and 3 finish early at the context limit
    for i, n in lengths.items():
        engine.add(i, Request(tuple(range(2, 2 + n)), 30, ignore_eos=True))
    engine.step()
    checked = 0
    while engine.num_unfinished:
        spans = {
            live.slot.index: (len(live.tokens) - 1, engine._depth(live), live.num_recent)
            for live in engine._live.values()
        }
        pages = {n: engine._pages.held(n) for n in spans}
        with Watch([t for t, _, _ in caches]) as written:
            engine.step()
        for which, (_, kind, size) in enumerate(caches):
            rows = written.live(which)
            drafter = which == len(caches) - 1
            if kind == "ring":
                allowed = set()
                for slot, (position, depth, recent) in spans.items():
                    first, last = (position - recent, position + depth - 2) if drafter else (position, position + depth)
                    last = max(last, position - 1) if drafter else last
                    assert last < sizes.max_model_len
                    allowed |= {slot * size + p % size for p in range(first, last + 1)}
                assert rows <= allowed
                tails = {slot * size + p % size for slot, (p, _, _) in spans.items()}
                assert drafter or tails <= rows
            else:
                ratio = int(kind.split("/")[1])
                allowed = set()
                for slot, (position, depth, _) in spans.items():
                    held = pages[slot] + engine._pages.held(slot)[len(pages[slot]) :]
                    for p in range(position, position + depth + 1):
                        if (p + 1) % ratio == 0:
                            entry = (p + 1) // ratio - 1
                            page = engine._table[slot, entry // size] if engine._table[slot, 0] >= 0 else None
                            page = held[entry // size] if page is None and entry // size < len(held) else page
                            if page is not None:
                                allowed.add(int(page) * size + entry % size)
                assert rows <= allowed
        checked += 1
    assert checked >= 4


def test_the_checker_sees_a_stray_write():
    cache = torch.zeros(6, 2)
    with Watch([cache]) as written:
        cache.index_copy_(0, torch.tensor([3, 5]), torch.ones(2, 2))
    assert written.live(0) == {3}
    with pytest.raises(AssertionError, match="unexpected write by fill_"), Watch([cache]):
        cache.fill_(1.0)
    with Watch([cache]) as written:
        cache.index_copy_(0, torch.tensor([4]), torch.ones(1, 2))
    with pytest.raises(AssertionError, match="zero row"):
        written.live(0)
