"""The native output matrix: its best tokens are those of its logits, whoever is beside a row, pad rows included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.stages.kernels.native.decoder import OutputMatrix
from draftline.stages.kernels.norm import rms_norm


def made(dtype: torch.dtype) -> tuple[OutputMatrix, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    norm, matrix = torch.rand(48, generator=g) + 0.5, torch.randn(83, 48, generator=g)
    return OutputMatrix(norm.to(dtype), matrix.to(dtype), 1e-5), norm.to(dtype), matrix.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 3])
@settings(max_examples=25, deadline=None)
@given(pads=st.lists(st.booleans(), min_size=1, max_size=19), seed=st.integers(0, 99))
def test_best_is_the_first_largest_logit(dtype, threads, pads, seed):
    torch.set_num_threads(threads)
    output, norm, matrix = made(dtype)
    x = torch.randn(len(pads), 48, generator=torch.Generator().manual_seed(seed)).to(dtype)
    x[torch.tensor(pads)] = 0
    best, logits = output.best(x), output.logits(x)
    assert torch.equal(best, logits.argmax(-1))
    alone = torch.stack([output.best(row[None])[0] for row in x])
    assert torch.equal(best, alone)
    truth = rms_norm(x, norm, 1e-5).float() @ matrix.float().T
    assert (logits - truth).abs().max() <= (1e-4 if dtype == torch.float32 else 0.2)
    assert (best[torch.tensor(pads)] == 0).all()
