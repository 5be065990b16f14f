"""Losslessness on Llama-style targets with an MTP head, on both kinds of kernels."""

from __future__ import annotations

import functools
from dataclasses import replace

import heads
import llamas
import pytest
import torch
from engines import engine_of, run

from draftline.runtime.deployment import Sizes

SIZES = Sizes(
    num_speculative_tokens=0,
    tile=8,
    max_num_seqs=1,
    max_model_len=192,
    prefill_tile=32,
    page_size=64,
    dtype="fp32",
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LENGTHS = [1, 2, 7, 31, 32, 33, 63, 64, 65, 180, 190, 191]
NEW = 14


def prompt(n: int) -> list[int]:
    return torch.randint(0, 300, (n,), generator=torch.Generator().manual_seed(n)).tolist()


PROMPTS = [prompt(n) for n in LENGTHS]


@functools.cache
def plain(kernels: str, dtype: str, tile: int = 8) -> list[tuple[int, ...]]:
    """K=0, one request at a time: the truth."""
    sizes = replace(SIZES, dtype=dtype, tile=tile)
    engine = engine_of(heads.model("llama", sizes, kernels, DTYPES[dtype]), sizes, "ar.yaml")
    return [o.token_ids for o in run(engine, PROMPTS, NEW, ignore_eos=True)]


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 8, 17])
def test_tokens_equal_plain_decoding(k, dtype, kernels):
    sizes = replace(SIZES, num_speculative_tokens=k, dtype=dtype, max_num_seqs=5)
    engine = engine_of(heads.model("llama", sizes, kernels, DTYPES[dtype]), sizes)
    captured = engine.runtime.captures
    outputs = run(engine, PROMPTS, NEW, ignore_eos=True)
    assert [o.token_ids for o in outputs] == plain(kernels, dtype)
    assert engine.runtime.captures == captured
    assert engine.num_free_pages == sizes.geometry().num_pages
    if k == 3:
        assert sum(o.counts.num_draft_tokens for o in outputs) > 0


@pytest.mark.parametrize("k", [1, 4])
def test_prompt_lookup_changes_no_token(k):
    sizes = replace(SIZES, num_speculative_tokens=k, max_num_seqs=3)
    outputs = run(engine_of(llamas.model("llama", sizes, "native"), sizes, "ngram.yaml"), PROMPTS, NEW, ignore_eos=True)
    assert [o.token_ids for o in outputs] == plain("native", "fp32")


def test_native_kernels_give_the_same_tokens_at_any_tile():
    """The bits of a row do not depend on the number of rows of its call, so not even the tile matters."""
    for tile in (1, 2, 4, 16):
        assert plain("native", "bf16", tile) == plain("native", "bf16")


def test_plain_decoding_equals_transformers():
    """The truth itself, against one uncached forward of transformers."""
    theirs = llamas.oracle("llama")[0]
    for p, tokens in zip(PROMPTS, plain("native", "fp32"), strict=True):
        with torch.no_grad():
            logits = theirs(torch.tensor([[*p, *tokens]])).logits[0]
        for i, token in enumerate(tokens):
            row = logits[len(p) - 1 + i]
            assert row[token] >= row.max() - 1e-4  # two that are equal to rounding may be swapped, no more
