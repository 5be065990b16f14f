"""Whole-sequence forward of DeepSeek V4 for training: the inference maths without caches.

Knows: dense masks over [B, S] token blocks, the indexer's own loss, the MTP layer unrolled over itself.
Does not know: optimisers, data, files. The layer itself is draftline.stages.models.deepseek_v4.block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.stages.kernels import rope
from draftline.stages.kernels.attention import index_scores, sink_attention
from draftline.stages.models.deepseek_v4 import block
from draftline.stages.models.deepseek_v4.config import OVERLAPPED_RATIO, Config
from draftline.stages.models.deepseek_v4.weights import (
    AttentionWeights,
    CompressorWeights,
    LayerWeights,
    MtpWeights,
    Weights,
)


@dataclass(frozen=True)
class Tables:
    """What depends on the length S only: (cos, sin) [S, F] of the two kinds of layer."""

    plain: tuple[Tensor, Tensor]
    scaled: tuple[Tensor, Tensor]
    scaled_freqs: Tensor


def tables(c: Config, length: int) -> Tables:
    """Rotary tables of positions 0 … length-1."""
    plain, scaled = block.rope_tables(c)
    p = torch.arange(length)
    return Tables(rope.cos_sin(p, plain), rope.cos_sin(p, scaled), scaled)


def sliding_mask(length: int, window: int) -> Tensor:
    """[1, S, S]: row i sees i-window+1 … i."""
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    return ((j <= i) & (j > i - window))[None]


def _entries(c: Config, w: CompressorWeights, x: Tensor, ratio: int, freqs: Tensor) -> Tensor:
    """All closed windows' entries [B, E, d], rotated to their first position."""
    b, s, _ = x.shape
    n = s // ratio
    rows = block.compressor_rows(w, x)[:, : n * ratio].unflatten(1, (n, ratio))
    exists = torch.ones(b, n, ratio, dtype=torch.bool)
    if ratio == OVERLAPPED_RATIO:
        rows = torch.cat((F.pad(rows[:, :-1], (0, 0, 0, 0, 1, 0)), rows), dim=2)
        exists = torch.cat((F.pad(exists[:, :-1], (0, 0, 1, 0)), exists), dim=2)
    cos, sin = rope.cos_sin(torch.arange(n) * ratio, freqs)
    return rope.rotate(block.compress(c, w, rows, exists), cos, sin)


def _attend_compressed(
    c: Config, w: AttentionWeights, p: block.Projected, ratio: int, t: Tables, index_losses: list[Tensor]
) -> Tensor:
    assert w.compressor is not None
    s = p.x.shape[1]
    entries = _entries(c, w.compressor, p.x, ratio, t.scaled_freqs)
    e = torch.arange(entries.shape[1])
    closed = (e[None] < (torch.arange(s)[:, None] + 1) // ratio)[None]  # [1, S, E]
    seen = closed.expand(p.x.shape[0], -1, -1)
    if w.indexer is not None:
        # The indexer learns to imitate attention and passes no gradient to the trunk (as DeepSeek V3.2 does).
        x, latent = p.x.detach(), p.latent.detach()
        cos, sin = t.scaled
        q, heads = block.index_queries(c, w, block.Projected(x, latent, p.q, p.kv), cos, sin)
        keys = _entries(c, w.indexer.compressor, x, ratio, t.scaled_freqs)
        scores = index_scores(q, keys, heads).masked_fill(~closed, float("-inf"))
        with torch.no_grad():
            dots = torch.einsum("bshd,bed->bshe", p.q, entries).float() * c.head_dim**-0.5
            wanted = dots.masked_fill(~closed.unsqueeze(2), float("-inf")).softmax(-1).nan_to_num().mean(2)
        log_share = scores.log_softmax(-1).masked_fill(~closed, 0.0)
        index_losses.append(-(wanted * log_share).sum(-1)[:, ratio - 1 :].mean())
        if entries.shape[1] > c.index_topk:
            top = scores.topk(c.index_topk, dim=-1).indices
            seen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, top, True) & closed
    kv = torch.cat((p.kv, entries), dim=1)
    local = sliding_mask(s, c.sliding_window).expand(seen.shape[0], -1, -1)
    return sink_attention(p.q, kv, torch.cat((local, seen), dim=-1), w.sink)


def trunk(c: Config, w: Weights, tokens: Tensor, t: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """tokens [B, S] to streams [B, S, H, D], the indexers' loss, and expert load [layers, E] (token share)."""
    streams = block.embed(c, w, tokens)
    mask = sliding_mask(tokens.shape[1], c.sliding_window)
    index_losses: list[Tensor] = []
    loads = []

    def run(layer: LayerWeights, ratio: int, streams: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = t.scaled if ratio else t.plain

        def attend(a: AttentionWeights, p: block.Projected) -> Tensor:
            if ratio:
                return _attend_compressed(c, a, p, ratio, t, index_losses)
            return sink_attention(p.q, p.kv, mask, a.sink)

        return block.layer(c, layer, streams, tokens, cos, sin, attend)

    for layer, ratio in zip(w.layers, c.compress_ratios, strict=True):
        streams, routing = run(layer, ratio, streams)
        loads.append((routing.detach() > 0).float().mean((0, 1)))
    loss = torch.stack(index_losses).mean() if index_losses else streams.new_zeros((), dtype=torch.float32)
    return streams, loss, torch.stack(loads)


def head(c: Config, w: Weights, streams: Tensor) -> Tensor:
    """Target logits [..., V] float32."""
    return block.logits(c, w.head, w.hc_head, w.norm, streams)


def mtp_unrolled(c: Config, w: Weights, tokens: Tensor, streams: Tensor, depth: int, t: Tables) -> list[Tensor]:
    """The MTP layer fed with its own output: logits of depth j = 1 … depth, each [B, S, V].

    Row i of depth j predicts tokens[i + 2] having seen the target's streams up to row i-j+1 only. It attends
    as it will when drafting: to rows ≤ i-j+1 made from true streams, and to the j-1 rows it drafted since.
    """
    m: MtpWeights | None = w.mtp
    assert m is not None
    _b, s = tokens.shape
    nxt = F.pad(tokens[:, 1:], (0, 1))
    embedding = w.embed[nxt]
    cos, sin = t.plain
    i, k = torch.arange(s)[:, None], torch.arange(s)[None]
    hidden, keys, out = streams, [], []
    for j in range(1, depth + 1):
        x = block.mtp_streams(c, m, embedding, hidden)
        masks = [(k <= i - j + 1) & (k > i - c.sliding_window)] + [k == i - j + n for n in range(2, j + 1)]
        visible = torch.cat(masks, dim=-1)[None]

        def attend(a: AttentionWeights, p: block.Projected, visible: Tensor = visible) -> Tensor:
            keys.append(p.kv)
            return sink_attention(p.q, torch.cat(keys, dim=1), visible, a.sink)

        hidden, _ = block.layer(c, m.layer, x, nxt, cos, sin, attend)
        out.append(block.logits(c, w.head, m.hc_head, m.norm, hidden))
        # Row i of the next depth continues row i-1 of this one.
        hidden = F.pad(hidden[:, :-1], (0, 0, 0, 0, 1, 0))
    return out
