"""Random MTP heads for the random Llamas. Helper for tests; no tests in here."""

from __future__ import annotations

import functools
from dataclasses import replace

import llamas
import torch
from torch import Tensor

from draftline.runtime.deployment import Sizes
from draftline.runtime.training.loop import initial
from draftline.stages.caches.core import Geometry
from draftline.stages.models.core import Loaded
from draftline.stages.models.mtp_head.config import HeadConfig
from draftline.stages.models.mtp_head.model import MtpHeadDrafter
from draftline.stages.models.mtp_head.native import NativeMtpHeadDrafter
from draftline.stages.models.mtp_head.weights import HeadWeights, assemble_head, head_specs

WINDOW = 512
GEOMETRY = Geometry(slots=2, max_len=128, page_size=64, num_pages=4, in_flight=16)


@functools.cache
def head(
    window: int = WINDOW, vocab: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[HeadConfig, HeadWeights, Tensor, Tensor]:
    """A random head for the random llama: config, weights, embedding and output matrix."""
    c, w = llamas.ours("llama", dtype)
    config = HeadConfig("llama", window, vocab, replace(c, num_hidden_layers=1))
    g = torch.Generator().manual_seed(9)
    tensors = {n: torch.randn(t.shape, generator=g) * 0.15 for n, t in initial(config, (c, w), 0).items()}
    tensors = {n: t + 1 if "norm" in n else t for n, t in tensors.items()}
    if vocab:
        tensors["draft_vocab"] = torch.randperm(c.vocab_size, generator=g)[:vocab].sort().values
    assert set(tensors) == set(head_specs(config))
    specs = head_specs(config)
    tensors = {n: t.to(dtype) if specs[n].kind == "model" else t for n, t in tensors.items()}
    return config, assemble_head(config, tensors), w.embed, w.head


def drafter(
    kernels: str,
    window: int = WINDOW,
    vocab: int = 0,
    geometry: Geometry = GEOMETRY,
    dtype: torch.dtype = torch.float32,
) -> MtpHeadDrafter | NativeMtpHeadDrafter:
    """A drafter with an empty cache."""
    config, w, embed, out = head(window, vocab, dtype)
    if kernels == "native":
        return NativeMtpHeadDrafter(config, w, embed, out, geometry, dtype)
    return MtpHeadDrafter(config, w, embed, out, geometry, dtype, torch.device("cpu"))


def model(kind: str, sizes: Sizes, kernels: str, dtype: torch.dtype = torch.float32) -> Loaded:
    """A target and its head, as an engine takes them."""
    plain, g = llamas.model(kind, sizes, kernels, dtype), sizes.geometry()
    shape = replace(plain.shape, num_mtp_layers=1)
    return replace(plain, shape=shape, drafter=drafter(kernels, geometry=g, dtype=dtype))
