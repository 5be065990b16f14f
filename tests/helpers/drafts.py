"""Random Llamas that draft for the random Llama. Helper for tests; no tests in here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import llamas
import torch
from torch import Tensor

from draftline.runtime.deployment import Sizes
from draftline.stages.models.core import Loaded
from draftline.stages.models.llama import shape_of
from draftline.stages.models.llama.config import Config
from draftline.stages.models.llama.model import LlamaTarget
from draftline.stages.models.llama.native import NativeLlamaTarget
from draftline.stages.models.llama.weights import Weights

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Parts = tuple[Config, Weights]


def noisy(kind: str, dtype: str, scale: float = 0.01) -> Parts:
    """A model that is often right about what ``kind`` says: its weights with noise."""
    c, w = llamas.ours(kind, TYPES[dtype])
    g = torch.Generator().manual_seed(8)

    def shaken(x: Tensor) -> Tensor:
        return x + (torch.randn(x.shape, generator=g) * scale).to(x.dtype)

    layers = tuple(replace(one, qkv=shaken(one.qkv), down=shaken(one.down)) for one in w.layers)
    return c, replace(w, layers=layers)


def idle_behind(kind: str, first: int, dtype: str) -> tuple[Parts, Parts]:
    """``kind`` with layers that contribute nothing behind the ``first`` ones, and those first ones as a model."""
    c, w = llamas.ours(kind, TYPES[dtype])
    idle = tuple(replace(one, o=torch.zeros_like(one.o), down=torch.zeros_like(one.down)) for one in w.layers[first:])
    small = replace(c, num_hidden_layers=first), replace(w, layers=w.layers[:first])
    return (c, replace(w, layers=w.layers[:first] + idle)), small


def running(parts: Parts, sizes: Sizes, kernels: str) -> Any:
    """The model with empty caches."""
    c, w = parts
    g, dtype = sizes.geometry(), TYPES[sizes.dtype]
    if kernels == "native":
        return NativeLlamaTarget(c, w, g, dtype)
    return LlamaTarget(c, w, g, dtype, torch.device("cpu"))


def model(target: Parts, draft: Parts, sizes: Sizes, kernels: str) -> Loaded:
    """A target and its draft model, as an engine takes them."""
    return Loaded(
        shape_of(target[0]),
        running(target, sizes, kernels),
        None,
        sizes.geometry(),
        TYPES[sizes.dtype],
        torch.device("cpu"),
        running(draft, sizes, kernels),
    )
