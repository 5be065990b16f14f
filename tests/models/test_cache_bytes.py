"""The bytes that a model's caches are said to take are those that they take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import SIZES, tiny, tiny_model

from draftline.stages.models.deepseek_v4.model import cache_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slots", [1, 4])
def test_cache_bytes(dtype, slots):
    sizes = replace(SIZES, max_num_seqs=slots)
    model = tiny_model(sizes, dtype)
    layers = [*model.target.caches, model.drafter.cache]
    real = sum(t.untyped_storage().nbytes() for layer in layers for t in vars(layer).values() if t is not None)
    assert cache_bytes(tiny()[0], sizes.geometry(), dtype) == real
