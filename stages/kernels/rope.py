"""Rotary positions, interleaved pairs, on the last channels of a head; YaRN frequencies.

Knows: angles and rotations. Does not know: which layers use which base.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def frequencies(rope_dim: int, theta: float) -> Tensor:
    """Angle per position of each channel pair, [rope_dim/2] float32 (Su et al. 2021, arXiv:2104.09864)."""
    return 1.0 / theta ** (torch.arange(0, rope_dim, 2, dtype=torch.float32) / rope_dim)


def yarn_frequencies(
    rope_dim: int,
    theta: float,
    factor: float,
    original_length: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool = True,
) -> Tensor:
    """YaRN's "NTK by parts" frequencies, [rope_dim/2] float32 (Peng et al. 2023, arXiv:2309.00071, §3.2).

    Pairs that turn more than ``beta_fast`` times over ``original_length`` keep their frequency, pairs that
    turn less than ``beta_slow`` times are divided by ``factor``, with a linear ramp between, whose ends ``truncate``
    rounds outward to whole pairs. DeepSeek V4 does not scale cos and sin (attention factor 1).
    """

    def pair_that_turns(turns: float) -> float:
        return rope_dim * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope_dim - 1)
    span = max(high - low, 0.001)
    ramp = ((torch.arange(rope_dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    base = frequencies(rope_dim, theta)
    return base / factor * ramp + base * (1 - ramp)


def cos_sin(positions: Tensor, freqs: Tensor) -> tuple[Tensor, Tensor]:
    """positions [...] and freqs [F] give cos and sin [..., F], float32."""
    angles = positions[..., None].float() * freqs
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last 2F channels of x [..., d] by cos, sin [..., F] (broadcast); the others pass through."""
    rope_dim = 2 * cos.shape[-1]
    plain, turned = x[..., :-rope_dim], x[..., -rope_dim:].float().unflatten(-1, (-1, 2))
    a, b = turned[..., 0], turned[..., 1]
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((plain, turned.to(x.dtype)), dim=-1)
