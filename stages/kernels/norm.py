"""RMS norm. Knows: the formula, computed in float32. Does not know: whose norm it is."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [..., D] scaled to unit root mean square, times weight [D] if there is one.

    Computed in float32 and cast back once (Zhang & Sennrich 2019, arXiv:1910.07467).
    """
    h = x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        h = h * weight
    return h.to(x.dtype)
