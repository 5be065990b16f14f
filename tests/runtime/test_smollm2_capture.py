"""SmolLM2-135M in bf16 on plain torch, eager and compiled: lossless at every K within each backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import smollm2
import torch

from draftline.runtime.pipeline import Pipeline, open_pipeline

PROMPTS = ["def fibonacci(n):", "The capital of France is"]
NEW = 16


@pytest.fixture(autouse=True)
def _two_threads(_threads) -> None:
    """As the deployments are opened: what a product of matrices splits over threads must not show either."""
    torch.set_num_threads(2)


def opened(graph: str, capture: str, k: int) -> Pipeline:
    return open_pipeline(
        graph,
        model="smollm2",
        dtype="bf16",
        kernels="reference",
        capture=capture,
        num_speculative_tokens=k,
        max_num_seqs=2,
        max_model_len=64,
        prefill_tile=8,  # as the tile: prefill and verify are one compiled call
        threads=2,
    )


def decode(pipeline: Pipeline, **options: int) -> list[tuple[int, ...]]:
    outputs = pipeline.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True, **options)
    return [o.token_ids for o in outputs]


@pytest.fixture(scope="module", params=["eager", "inductor"])
def backend(request) -> Iterator[tuple[Pipeline, list[tuple[int, ...]]]]:
    """A deployment of K up to 9 and the truth: plain decoding by a deployment that knows no drafts."""
    smollm2.fetched()
    with opened("ar.yaml", request.param, 0) as plain:
        truth = decode(plain)
    with opened("mtp.yaml", request.param, 9) as pipeline:
        yield pipeline, truth


@pytest.mark.parametrize("k", [0, 1, 3, 4, 9])
def test_tokens_equal_plain_decoding(backend, k):
    pipeline, truth = backend
    captured = pipeline.engine.runtime.captures
    assert decode(pipeline, num_speculative_tokens=k) == truth
    assert pipeline.engine.runtime.captures == captured
