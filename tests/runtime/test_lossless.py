"""Greedy losslessness on a random V4 with every layer kind: any K, tile, batch and precision gives K=0's tokens.

The random model is the hard case: its MTP layer is nearly always wrong, and its logits are flat, so a single
bit of difference in a cache would show. Bit equality of rows is test_row_invariance.py.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import replay
import torch
from engines import SIZES, engine_of, run, tiny, tiny_model

from draftline.runtime.replicas import generate
from draftline.runtime.request import Request

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WINDOW, CSA, HCA = 8, 4, 128
# Prompts whose tail lies at, before and after each cache boundary, and near the context limit (384).
BOUNDARIES = [1, 2, CSA - 1, CSA, CSA + 1, WINDOW - 1, WINDOW, WINDOW + 1, HCA - 1, HCA, HCA + 1, 255, 256, 257]
NEAR_LIMIT = [375, 381, 383, 384]
NEW = 13


def prompt(length: int, seed: int) -> list[int]:
    g = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(2, 256, (length,), generator=g).tolist()


PROMPTS = [prompt(n, i) for i, n in enumerate(BOUNDARIES + NEAR_LIMIT)]


@functools.cache
def plain(dtype: str, tile: int) -> list[tuple[tuple[int, ...], str]]:
    """K=0, one request at a time: the truth."""
    sizes = replace(SIZES, num_speculative_tokens=0, tile=tile, dtype=dtype, max_num_seqs=1)
    engine = engine_of(tiny_model(sizes, DTYPES[dtype]), sizes, "ar.yaml")
    outputs = run(engine, PROMPTS, NEW, ignore_eos=True)
    return [(o.token_ids, o.finish_reason) for o in outputs]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [8, 16])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 32])
def test_tokens_equal_plain_decoding(k, tile, dtype):
    sizes = replace(SIZES, num_speculative_tokens=k, tile=tile, dtype=dtype, max_num_seqs=5)
    engine = engine_of(tiny_model(sizes, DTYPES[dtype]), sizes)
    captured = engine.runtime.captures
    outputs = run(engine, PROMPTS, NEW, ignore_eos=True)
    assert [(o.token_ids, o.finish_reason) for o in outputs] == plain(dtype, tile)
    assert engine.num_free_pages == engine.sizes.geometry().num_pages
    assert engine.runtime.captures == captured  # none after warm-up
    for p, o in zip(PROMPTS, outputs, strict=True):
        assert len(o.token_ids) == min(NEW, SIZES.max_model_len - len(p))


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 20])
def test_batch_size_changes_no_token(batch):
    sizes = replace(SIZES, num_speculative_tokens=5, max_num_seqs=batch)
    outputs = run(engine_of(tiny_model(sizes), sizes), PROMPTS, NEW, ignore_eos=True)
    assert [(o.token_ids, o.finish_reason) for o in outputs] == plain("fp32", 8)


@pytest.mark.parametrize("k", [1, 3, 9])
def test_prompt_lookup_changes_no_token(k):
    sizes = replace(SIZES, num_speculative_tokens=k, max_num_seqs=5)
    outputs = run(engine_of(tiny_model(sizes), sizes, "ngram.yaml"), PROMPTS, NEW, ignore_eos=True)
    assert [(o.token_ids, o.finish_reason) for o in outputs] == plain("fp32", 8)


def test_depths_of_their_own_in_one_batch():
    """Requests may ask for fewer drafts than the engine's K; 0 opts out."""
    sizes = replace(SIZES, num_speculative_tokens=9, max_num_seqs=6)
    engine = engine_of(tiny_model(sizes), sizes)
    wanted = [None, 0, 1, 4, 9, 30]
    requests = [
        Request(tuple(p), NEW, num_speculative_tokens=wanted[i % 6], ignore_eos=True) for i, p in enumerate(PROMPTS)
    ]
    outputs = generate([engine], requests)
    assert [(o.token_ids, o.finish_reason) for o in outputs] == plain("fp32", 8)
    assert all(o.counts.num_draft_tokens == 0 for i, o in enumerate(outputs) if wanted[i % 6] == 0)


def test_k0_equals_one_uncached_forward():
    """The truth itself, against the training forward without any cache."""
    from benchmarks.training import forward

    c, w = tiny()
    for p, (tokens, _) in list(zip(PROMPTS, plain("fp32", 8), strict=True))[:12]:
        ids = torch.tensor([[*p, *tokens]])
        with torch.no_grad():
            streams, _, _ = forward.trunk(c, w, ids, forward.tables(c, ids.shape[1]))
            logits = forward.head(c, w, streams)[0]
        for i, token in enumerate(tokens):
            row = logits[len(p) - 1 + i]
            # Another order of summation may swap two logits that are equal to rounding, never more than that.
            assert row[token] >= row.max() - 1e-4


@pytest.mark.parametrize("mode", replay.MODES)
@pytest.mark.parametrize(("k", "tile"), [(3, 8), (7, 8), (9, 8), (32, 16)])
def test_an_adversarial_drafter_on_real_caches(k, tile, mode, monkeypatch):
    """Right drafts commit rows over every boundary and chunk; wrong ones leave stale rows behind."""
    known = [[*p, *tokens] for p, (tokens, _) in zip(PROMPTS, plain("fp32", tile), strict=True)]
    monkeypatch.setattr(replay, "KNOWN", known)
    sizes = replace(SIZES, num_speculative_tokens=k, tile=tile, max_num_seqs=5)
    outputs = run(engine_of(tiny_model(sizes), sizes, replay.graph(mode, j=k // 2)), PROMPTS, NEW, ignore_eos=True)
    assert [(o.token_ids, o.finish_reason) for o in outputs] == plain("fp32", tile)
    for p, o in zip(PROMPTS, outputs, strict=True):
        wanted = min(NEW, SIZES.max_model_len - len(p))
        if mode == "right":
            assert o.counts.steps == -(-wanted // (k + 1))
        if mode == "wrong":
            assert o.counts.steps == wanted
        if mode == "until" and wanted == NEW:
            assert o.counts.steps <= -(-NEW // (k // 2 + 1))
