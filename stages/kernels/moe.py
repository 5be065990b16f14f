"""Mixture of experts. Knows: routing weights and the experts' sum. Does not know: where tokens come from.

All experts are computed for all rows and the routing weight zeroes what was not chosen: the shapes do not
depend on the routing, so a row's result does not depend on its neighbours. That is the reference; a device
with a grouped matrix product replaces ``experts``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(
    x: Tensor,
    gate: Tensor,
    *,
    top_k: int,
    scale: float,
    bias: Tensor | None = None,
    chosen: Tensor | None = None,
    normalise: bool = True,
) -> Tensor:
    """Routing weights [..., E] of x [..., D], zero where not routed, float32.

    Scores are sqrt(softplus(x·gateᵀ)), gate [E, D]. Experts are ``chosen`` [..., top_k] (hash routing), or the
    top_k of score + bias [E] (the bias chooses and never weighs; DeepSeek V3, arXiv:2412.19437, §2.1.2).
    """
    scores = F.softplus(F.linear(x.float(), gate.float())).sqrt()
    if chosen is None:
        chosen = (scores if bias is None else scores + bias).topk(top_k, dim=-1, sorted=False).indices
    weights = scores.gather(-1, chosen)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return torch.zeros_like(scores).scatter(-1, chosen, weights * scale)


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit); config field ``swiglu_limit``, 0 for no limit."""
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return F.silu(gate) * up


def experts(x: Tensor, routing: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, limit: float) -> Tensor:
    """Σ_e routing_e · w2_e(swiglu(w1_e x, w3_e x)) for x [..., D], routing [..., E].

    w1 and w3 [E·I, D] and w2 [D, E·I] hold the experts side by side: three matrix products in all.
    """
    inner = swiglu(F.linear(x, w1), F.linear(x, w3), limit).unflatten(-1, (routing.shape[-1], -1))
    inner = (inner * routing.unsqueeze(-1).to(inner.dtype)).flatten(-2)
    return F.linear(inner, w2)


def mlp(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, limit: float) -> Tensor:
    """The shared expert: w2(swiglu(w1 x, w3 x))."""
    return F.linear(swiglu(F.linear(x, w1), F.linear(x, w3), limit), w2)
