"""Manifold-constrained hyper-connections: H residual streams mixed by a doubly stochastic matrix.

Knows: how streams collapse into a block's input and take in its output. Does not know: the block.
Source: Xie et al., "mHC: Manifold-Constrained Hyper-Connections" (arXiv:2512.24880); config fields
``hc_mult`` (H), ``hc_sinkhorn_iters``, ``hc_eps``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .norm import rms_norm


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """logits [..., H, H] to a matrix whose rows and columns sum to 1 (to within eps): softmax over rows,
    one column pass, then ``iterations`` - 1 alternating passes."""
    m = logits.softmax(-1) + eps
    m = m / (m.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        m = m / (m.sum(-1, keepdim=True) + eps)
        m = m / (m.sum(-2, keepdim=True) + eps)
    return m


def collapse(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, iterations: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Streams [..., H, D] to the block's input x [..., D], and what ``expand`` needs:
    post [..., H] and comb [..., H, H]. fn [(2+H)·H, H·D], base [(2+H)·H] and scale [3] are float32."""
    hc = streams.shape[-2]
    mixes = F.linear(rms_norm(streams.flatten(-2).float(), None, norm_eps), fn)
    pre = torch.sigmoid(mixes[..., :hc] * scale[0] + base[:hc]) + eps
    post = 2 * torch.sigmoid(mixes[..., hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    comb = (mixes[..., 2 * hc :] * scale[2] + base[2 * hc :]).unflatten(-1, (hc, hc))
    x = (pre.unsqueeze(-1) * streams).sum(-2).to(streams.dtype)
    return x, post, sinkhorn(comb, iterations, eps)


def expand(streams: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """The block's output x [..., D] back onto the streams: new[k] = post[k]·x + Σ_j comb[j, k]·streams[j].

    The matrix is used transposed; it is doubly stochastic but not symmetric, so that matters.
    """
    mixed = torch.matmul(comb.transpose(-1, -2).to(streams.dtype), streams)
    return post.unsqueeze(-1).to(streams.dtype) * x.unsqueeze(-2) + mixed


def head(streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, eps: float, norm_eps: float) -> Tensor:
    """Streams [..., H, D] to the final hidden [..., D]; fn [H, H·D], base [H], scale [1] in float32."""
    mixes = F.linear(rms_norm(streams.flatten(-2).float(), None, norm_eps), fn)
    pre = torch.sigmoid(mixes * scale + base) + eps
    return (pre.unsqueeze(-1) * streams).sum(-2).to(streams.dtype)
