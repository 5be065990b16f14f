"""DeepSeek V4's layer, head and MTP mixing as functions of tensors, shared by inference and training.

Knows: the maths of a layer on rows of any leading shape [...]. Does not know: caches and which keys a row
sees: the caller passes ``attend``. Source: the DeepSeek-V4 report and the fields of its ``config.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.stages.kernels import hyper, moe, rope
from draftline.stages.kernels.attention import pool
from draftline.stages.kernels.norm import rms_norm

from .config import Config
from .weights import (
    AttentionWeights,
    CompressorWeights,
    HyperWeights,
    LayerWeights,
    MoeWeights,
    MtpWeights,
    Weights,
)


@dataclass(frozen=True)
class Projected:
    """What attention starts from: x [..., D] (normed input), latent [..., q_lora_rank], q [..., h, d] and
    kv [..., d], both rotated to the row's position."""

    x: Tensor
    latent: Tensor
    q: Tensor
    kv: Tensor


Attend = Callable[[AttentionWeights, Projected], Tensor]
"""Gives the attention output [..., h, d], still rotated."""


def rope_tables(c: Config) -> tuple[Tensor, Tensor]:
    """Frequencies of sliding layers and of compressed layers (YaRN where configured), each [rope_dim/2]."""
    plain = rope.frequencies(c.qk_rope_head_dim, c.rope_theta)
    if c.yarn is None:
        return plain, rope.frequencies(c.qk_rope_head_dim, c.compress_rope_theta)
    y = c.yarn
    scaled = rope.yarn_frequencies(
        c.qk_rope_head_dim, c.compress_rope_theta, y.factor, y.original_length, y.beta_fast, y.beta_slow
    )
    return plain, scaled


def project(c: Config, w: AttentionWeights, x: Tensor, cos: Tensor, sin: Tensor) -> Projected:
    """x [..., D]; cos and sin [..., rope_dim/2] of the rows' positions."""
    latent = rms_norm(F.linear(x, w.wq_a), w.q_norm, c.rms_norm_eps)
    q = F.linear(latent, w.wq_b).unflatten(-1, (c.num_attention_heads, c.head_dim))
    q = rope.rotate(rms_norm(q, None, c.rms_norm_eps), cos.unsqueeze(-2), sin.unsqueeze(-2))
    kv = rope.rotate(rms_norm(F.linear(x, w.wkv), w.kv_norm, c.rms_norm_eps), cos, sin)
    return Projected(x, latent, q, kv)


def project_output(c: Config, w: AttentionWeights, o: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """o [..., h, d] to [..., D]: undo the values' rotation at the row's own position (what is left depends on
    relative distance only), then the grouped low-rank projection: wo_a per group of heads, wo_b over all."""
    o = rope.rotate(o, cos.unsqueeze(-2), -sin.unsqueeze(-2)).flatten(-2).unflatten(-1, (c.o_groups, -1))
    wo_a = w.wo_a.unflatten(0, (c.o_groups, c.o_lora_rank))
    # [..., g, h·d/g] x [g, r, h·d/g] -> [..., g, r]; as g products of whole rows, so that a row is a row
    rows = o.flatten(0, -3).transpose(0, 1)
    low = torch.bmm(rows, wo_a.transpose(1, 2)).transpose(0, 1)
    return F.linear(low.reshape(*o.shape[:-2], -1), w.wo_b)


def index_queries(c: Config, w: AttentionWeights, p: Projected, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The indexer's rotated queries [..., hi, di] and head weights [..., hi]."""
    assert w.indexer is not None
    q = F.linear(p.latent, w.indexer.wq_b).unflatten(-1, (c.index_n_heads, c.index_head_dim))
    return rope.rotate(q, cos.unsqueeze(-2), sin.unsqueeze(-2)), F.linear(p.x, w.indexer.weights_proj)


def compressor_rows(w: CompressorWeights, x: Tensor) -> Tensor:
    """x [..., D] to the compressor's state rows [..., 2·c·d]: values, then gates."""
    return torch.cat((F.linear(x, w.wkv), F.linear(x, w.wgate)), dim=-1)


def route(c: Config, w: MoeWeights, x: Tensor, tokens: Tensor) -> Tensor:
    """Routing weights [..., E] of x [..., D]; hash layers look the experts up by token id."""
    return moe.route(
        x,
        w.gate,
        top_k=c.num_experts_per_tok,
        scale=c.routed_scaling_factor,
        bias=w.bias,
        chosen=None if w.tid2eid is None else w.tid2eid[tokens],
        normalise=c.norm_topk_prob,
    )


def feed_forward(c: Config, w: MoeWeights, x: Tensor, routing: Tensor) -> Tensor:
    """Routed experts plus the shared expert."""
    routed = moe.experts(x, routing, w.w1, w.w2, w.w3, c.swiglu_limit)
    return routed + moe.mlp(x, w.shared_w1, w.shared_w2, w.shared_w3, c.swiglu_limit)


def layer(
    c: Config, w: LayerWeights, streams: Tensor, tokens: Tensor, cos: Tensor, sin: Tensor, attend: Attend
) -> tuple[Tensor, Tensor]:
    """One decoder layer on streams [..., H, D]. Gives the new streams and the routing weights [..., E]."""
    x, post, comb = _collapse(c, w.hc_attn, streams)
    p = project(c, w.attn, rms_norm(x, w.attn_norm, c.rms_norm_eps), cos, sin)
    streams = hyper.expand(streams, project_output(c, w.attn, attend(w.attn, p), cos, sin), post, comb)
    x, post, comb = _collapse(c, w.hc_ffn, streams)
    x = rms_norm(x, w.ffn_norm, c.rms_norm_eps)
    routing = route(c, w.ffn, x, tokens)
    return hyper.expand(streams, feed_forward(c, w.ffn, x, routing), post, comb), routing


def _collapse(c: Config, w: HyperWeights, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return hyper.collapse(
        streams, w.fn, w.base, w.scale, iterations=c.hc_sinkhorn_iters, eps=c.hc_eps, norm_eps=c.rms_norm_eps
    )


def embed(c: Config, w: Weights, tokens: Tensor) -> Tensor:
    """tokens [...] to H equal streams [..., H, D]."""
    return w.embed[tokens].unsqueeze(-2).expand(*tokens.shape, c.hc_mult, -1)


def logits(c: Config, head: Tensor, hc: HyperWeights, norm: Tensor, streams: Tensor) -> Tensor:
    """Streams [..., H, D] to float32 logits [..., V]."""
    x = hyper.head(streams, hc.fn, hc.base, hc.scale, eps=c.hc_eps, norm_eps=c.rms_norm_eps)
    return F.linear(rms_norm(x, norm, c.rms_norm_eps), head).float()


def mtp_streams(c: Config, w: MtpWeights, embedding: Tensor, streams: Tensor) -> Tensor:
    """Input streams of the MTP layer [..., H, D]: the target's streams at position i (before its head) and the
    embedding [..., D] of the token at i + 1."""
    e = F.linear(rms_norm(embedding, w.enorm, c.rms_norm_eps), w.e_proj)
    return e.unsqueeze(-2) + F.linear(rms_norm(streams, w.hnorm, c.rms_norm_eps), w.h_proj)


def compress(c: Config, w: CompressorWeights, rows: Tensor, exists: Tensor) -> Tensor:
    """Pool the state rows of one window into an entry [..., d], not rotated yet.

    rows [..., n, 2·c·d] oldest first: the window's rows, and before them the previous window's where windows
    overlap (n = 2·ratio). exists [..., n] is False for rows before the sequence's start. In an overlapped
    compressor the previous window speaks through the first d channels, the current one through the last d.
    """
    kv, gate = rows.chunk(2, dim=-1)
    d, ape = w.norm.shape[0], w.ape
    if kv.shape[-1] == 2 * d:
        r = w.ape.shape[0]
        kv = torch.cat((kv[..., :r, :d], kv[..., r:, d:]), dim=-2)
        gate = torch.cat((gate[..., :r, :d], gate[..., r:, d:]), dim=-2)
        ape = torch.cat((ape[:, :d], ape[:, d:]), dim=0)
    return pool(kv, gate.masked_fill(~exists.unsqueeze(-1), float("-inf")), ape, w.norm, c.rms_norm_eps)
