"""Llama-style decoders against transformers, on both kinds of kernels: prefill, then calls of any number of rows."""

from __future__ import annotations

import llamas
import pytest
import torch

from draftline.graph.errors import ConfigError
from draftline.stages.caches.core import Geometry
from draftline.stages.models.llama.config import parse_config

KERNELS = ("reference", "native")
LENGTH = 150
PAGES = torch.tensor([[-1, -1, -1], [4, 1, 3]])  # scattered on purpose
GEOMETRY = Geometry(slots=2, max_len=192, page_size=64, num_pages=6, in_flight=64)
TOKENS = torch.randint(0, 300, (LENGTH,), generator=torch.Generator().manual_seed(3))


def decode(target, widths: list[int], size: int) -> torch.Tensor:
    """Logits of all positions, ``widths`` rows at a time in calls of ``size`` rows."""
    got, p = [], 0
    with torch.no_grad():
        for width in widths:
            call = llamas.rows(TOKENS, p, width, max(size, width), PAGES)
            streams = target.forward(call)
            got.append(target.logits(streams)[:width])
            assert torch.equal(target.greedy(streams)[:width], got[-1].argmax(-1))
            p += width
    assert p == LENGTH
    return torch.cat(got)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", llamas.KINDS)
def test_logits_equal_transformers(kind, kernels):
    model, _ = llamas.oracle(kind)
    with torch.no_grad():
        truth = model(TOKENS[None]).logits[0]
    got = decode(llamas.target(kind, GEOMETRY, kernels), [64, 1, 1, 8, 3, 8, 1, 64], 8)
    assert truth.std() > 0.3  # logits that say something
    assert (got - truth).abs().max() <= 1e-4
    assert torch.equal(got.argmax(-1), truth.argmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_native_rows_are_bitwise_the_same_in_calls_of_any_size(threads, dtype):
    """More than DESIGN §4.3 asks: not even the number of rows of a call matters, nor the number of threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        truth = decode(llamas.target("qwen3", GEOMETRY, "native", dtype), [1] * LENGTH, 1)
        torch.set_num_threads(threads)
        for widths, size in (([64, 64, 22], 64), ([8] * 18 + [6], 8), ([3] * 50, 16), ([64, 7, 1, 5, 2, 4, 6, 61], 8)):
            got = decode(llamas.target("qwen3", GEOMETRY, "native", dtype), widths, size)
            assert torch.equal(got, truth), widths
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kernels", KERNELS)
def test_rejected_rows_are_overwritten_without_a_trace(kernels):
    right = decode(llamas.target("llama", GEOMETRY, kernels), [8] * 18 + [6], 8)
    target, wrong = llamas.target("llama", GEOMETRY, kernels), (TOKENS + 7) % 300
    with torch.no_grad():
        for p in range(0, LENGTH - 8):
            tokens = torch.cat((TOKENS[: p + 1], wrong[p + 1 : p + 8]))
            logits = target.logits(target.forward(llamas.rows(tokens, p, 8, 8, PAGES)))
            assert torch.allclose(logits[0], right[p], atol=1e-5), p


def test_bf16_native_agrees_with_the_reference():
    """The two round at different places: close logits, mostly the same tokens."""
    a, b = (decode(llamas.target("llama", GEOMETRY, k, torch.bfloat16), [64, 64, 22], 64) for k in KERNELS)
    truth = llamas.oracle("llama")[0](TOKENS[None]).logits[0].detach()
    assert (a - truth).abs().mean() < 0.02 * truth.abs().max()
    assert (b - truth).abs().mean() <= 1.2 * (a - truth).abs().mean()  # float32 sums: no worse than the reference
    assert (a.argmax(-1) == b.argmax(-1)).float().mean() > 0.9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt2"}, "llama, mistral, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "'silu' is served"),
        ({"num_key_value_heads": 3}, "does not divide"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rotated again"),
        ({"rope_scaling": {"type": "longrope"}, "rope_parameters": None}, "rotated again"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "default, linear, llama3, yarn"),
        ({"partial_rotary_factor": 0.5}, "only 1.0"),
        ({"model_type": "mistral", "sliding_window": 128}, "sliding_window=128"),
        ({"head_dim": 15}, "even"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused_by_name(change, said):
    with pytest.raises(ConfigError, match=said):
        parse_config({**llamas.oracle("llama")[1], **change}, "somewhere/config.json")


def test_old_and_new_keys_mean_the_same():
    new = llamas.oracle("llama-llama3")[1]
    old = {k: v for k, v in new.items() if k != "rope_parameters"}
    old |= {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", **llamas.LLAMA3}}
    assert parse_config(old) == parse_config(new)
