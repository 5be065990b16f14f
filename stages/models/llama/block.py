"""A Llama-style layer as functions of tensors, shared by inference and training.

Knows: the maths of a layer on rows of any leading shape [...]. Does not know: caches and which keys a row sees: the
caller passes ``attend``. Source: Touvron et al. 2023 (arXiv:2302.13971); Qwen2 (biases) and Qwen3 (norms of q and k).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.stages.kernels import rope_scaling
from draftline.stages.kernels.norm import rms_norm
from draftline.stages.kernels.rope import frequencies, yarn_frequencies

from .config import Config
from .weights import LayerWeights

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q [..., h, d], k and v [..., kv heads, d], q and k rotated, to the attention output [..., h, d]."""


def rope_table(c: Config) -> tuple[Tensor, float]:
    """Frequencies [head_dim/2] float32, and what cos and sin are multiplied by."""
    r = c.rope
    if r.kind == "linear":
        return rope_scaling.linear(c.head_dim, r.theta, r.factor), 1.0
    if r.kind == "llama3":
        return rope_scaling.llama3(
            c.head_dim, r.theta, r.factor, r.low_freq_factor, r.high_freq_factor, r.original_length
        ), 1.0
    if r.kind == "yarn":
        table = yarn_frequencies(c.head_dim, r.theta, r.factor, r.original_length, r.beta_fast, r.beta_slow, r.truncate)
        own = rope_scaling.yarn_attention_factor(r.factor, r.mscale, r.mscale_all_dim)
        return table, own if r.attention_factor is None else r.attention_factor
    return frequencies(c.head_dim, r.theta), 1.0


def angles(positions: Tensor, table: tuple[Tensor, float]) -> tuple[Tensor, Tensor]:
    """cos and sin [..., 1, head_dim/2] of positions [...], scaled; they broadcast over heads."""
    freqs, scale = table
    turned = positions[..., None, None].float() * freqs
    return turned.cos() * scale, turned.sin() * scale


def project(c: Config, w: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x [..., D] (normed) to q [..., h, d], k and v [..., kv heads, d]; q and k are rotated."""
    q, k, v = F.linear(x, w.qkv, w.qkv_bias).split((c.q_size, c.kv_size, c.kv_size), dim=-1)
    q, k, v = (t.unflatten(-1, (-1, c.head_dim)) for t in (q, k, v))
    if w.q_norm is not None:
        q, k = rms_norm(q, w.q_norm, c.rms_norm_eps), rms_norm(k, w.k_norm, c.rms_norm_eps)
    return rope_scaling.rotate_half(q, cos, sin), rope_scaling.rotate_half(k, cos, sin), v


def feed_forward(w: LayerWeights, x: Tensor) -> Tensor:
    """x [..., D] (normed) to [..., D]."""
    gate, up = F.linear(x, w.gate_up, w.gate_up_bias).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, w.down, w.down_bias)


def layer(c: Config, w: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
    """One decoder layer on x [..., D]."""
    o = attend(*project(c, w, rms_norm(x, w.attn_norm, c.rms_norm_eps), cos, sin))
    x = x + F.linear(o.flatten(-2), w.o, w.o_bias)
    return x + feed_forward(w, rms_norm(x, w.ffn_norm, c.rms_norm_eps))


def head(c: Config, norm: Tensor, matrix: Tensor, x: Tensor) -> Tensor:
    """x [..., D] to float32 logits [..., V]."""
    return F.linear(rms_norm(x, norm, c.rms_norm_eps), matrix).float()


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """q [R, h, d], k and v [R, L, kv heads, d], visible [R, L] bool, to [R, h, d]. Softmax in float32; a row that sees
    nothing gives zeros. Heads are grouped: kv head j serves query heads j·h/kv … (Ainslie et al. 2023,
    arXiv:2305.13245)."""
    r, h, d = q.shape
    kv = k.shape[2]
    scores = torch.matmul(q.view(r, kv, h // kv, d), k.permute(0, 2, 3, 1)).float() * d**-0.5  # [R, kv, g, L]
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    probs = torch.where(visible[:, None, None], scores.softmax(-1), 0.0)
    return torch.matmul(probs.to(v.dtype), v.transpose(1, 2)).view(r, h, d)
