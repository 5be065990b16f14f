"""Rotary frequencies of the usual scalings, and rotation of the two halves of a head.

Knows: linear and Llama 3 scaling, YaRN's factor of cos and sin (its frequencies: ``rope.py``). Does not know: configs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .rope import frequencies


def linear(head_dim: int, theta: float, factor: float) -> Tensor:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595): every frequency divided by ``factor``."""
    return frequencies(head_dim, theta) / factor


def llama3(head_dim: int, theta: float, factor: float, low: float, high: float, original_length: int) -> Tensor:
    """Llama 3.1's frequencies, [head_dim/2] float32: pairs that turn more than ``high`` times over
    ``original_length`` stay, pairs that turn less than ``low`` times are divided by ``factor``, and between the two the
    share of the unscaled one grows linearly with the number of turns (config field ``rope_scaling``)."""
    base = frequencies(head_dim, theta)
    turns = original_length * base / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * base / factor + smooth * base


def yarn_attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """What YaRN multiplies cos and sin by: 0.1·ln(factor) + 1, or the quotient of the two mscales' (DeepSeek V2)."""

    def scale(m: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0

    if mscale and mscale_all_dim:
        return scale(mscale) / scale(mscale_all_dim)
    return scale(1.0)


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., 2F] by cos and sin [..., F] (broadcast): channel i forms a pair with channel i + F."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
