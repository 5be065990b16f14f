"""Attention pieces of DeepSeek V4: one shared key-value head with sinks, compressor pooling, index scores.

Knows: the maths on dense tensors. Does not know: caches, positions, which keys a row may see.

Every function works row by row: a row's result does not depend on the other rows of the call, bitwise,
as long as the shapes stay the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .norm import rms_norm


def sink_attention(q: Tensor, kv: Tensor, visible: Tensor, sinks: Tensor) -> Tensor:
    """q [B, S, h, d], kv [B, L, d] (key and value are the same vector), visible [B or 1, S, L] bool,
    sinks [h] float32 give [B, S, h, d].

    A sink is one more logit in the softmax's sum that carries no value, so a row that sees nothing gives 0.
    """
    b, s, h, d = q.shape
    scores = torch.matmul(q.reshape(b, s * h, d), kv.transpose(-1, -2)).view(b, s, h, -1).float() * d**-0.5
    scores = scores.masked_fill(~visible.unsqueeze(2), float("-inf"))
    column = sinks.view(1, 1, h, 1).expand(b, s, h, 1)
    probs = torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
    return torch.matmul(probs.to(kv.dtype).reshape(b, s * h, -1), kv).view(b, s, h, d)


def pool(kv: Tensor, gate: Tensor, ape: Tensor, norm: Tensor, eps: float) -> Tensor:
    """Compress n rows into one entry: Σ_n softmax_n(gate + ape) ⊙ kv, then RMS norm.

    kv and gate [..., n, d], ape [n, d]; rows that do not exist carry gate = -inf. Gives [..., d].
    """
    share = (gate.float() + ape).softmax(-2)
    return rms_norm((kv.float() * share).sum(-2), norm, eps).to(kv.dtype)


def index_scores(q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """The lightning indexer's score Σ_h w_h · ReLU(q_h · k) / √(d·h), in float32.

    q [B, S, h, d], keys [B, E, d], weights [B, S, h] give [B, S, E].
    """
    b, s, h, d = q.shape
    dots = torch.matmul(q.reshape(b, s * h, d).float(), keys.float().transpose(-1, -2)).view(b, s, h, -1)
    w = weights.float() * (d**-0.5 * h**-0.5)
    return torch.matmul(w.unsqueeze(2), F.relu(dots)).squeeze(2)
