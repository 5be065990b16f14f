"""DeepSeek V4 on position-addressed caches: R rows in, residual streams out.

Knows: which cache rows each row writes and reads. Does not know: requests, layouts, waves.

A call with R rows costs the same whatever the rows are: every tensor's shape depends on R and on the
deployment's sizes only. So a row's result is bitwise the same beside any neighbours. All R rows are written
before any is read, in each layer, so rows of one request see each other. Every row that closes a compression
window writes its entry; a call of eight rows may close two windows of ratio 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.stages.caches import core as cache
from draftline.stages.caches.core import Geometry
from draftline.stages.kernels import rope
from draftline.stages.kernels.attention import index_scores, sink_attention
from draftline.stages.models.core import Ring, Rows

from . import block
from .config import OVERLAPPED_RATIO, Config
from .weights import AttentionWeights, CompressorWeights, LayerWeights, Weights

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class WindowIndex:
    """Sliding window of each row: where it writes [R], what it reads [R, window], oldest first."""

    write: Tensor
    read: Tensor


@dataclass(frozen=True)
class CompressIndex:
    """Compression of one ratio: state ring write [R] and read [R, n], page entry write [R] (-1 unless the row
    closes a window) and read [R, E], and the entry's own rotary angles [R, F]."""

    state_write: Tensor
    state_read: Tensor
    entry_write: Tensor
    entry_read: Tensor
    angles: Angles


def window_index(rows: Rows, window: int, length: int) -> WindowIndex:
    """Index of the last ``window`` positions up to each row's own, in rings of ``length``."""
    back = torch.arange(window - 1, -1, -1, device=rows.positions.device)
    read = cache.ring_index(rows.slots[:, None], rows.positions[:, None] - back, length)
    return WindowIndex(cache.ring_index(rows.slots, rows.positions, length), read)


def compress_index(rows: Rows, ratio: int, overlap: int, geometry: Geometry, freqs: Tensor) -> CompressIndex:
    """``overlap`` is 2 where an entry reads the previous window too, else 1."""
    n = ratio * overlap
    per_page = cache.entries_per_page(geometry.page_size, ratio)
    state = window_index(rows, n, cache.ring_length(n, geometry))
    closed = (rows.positions + 1) // ratio  # windows closed at this row, its own included
    closes = (rows.positions >= 0) & ((rows.positions + 1) % ratio == 0)
    entry = torch.where(closes, closed - 1, -1)
    e = torch.arange(geometry.pages_per_slot * per_page, device=rows.positions.device)
    visible = torch.where(e < closed[:, None], e, -1)
    return CompressIndex(
        state.write,
        state.read,
        cache.page_index(rows.pages, rows.slots, entry, per_page),
        cache.page_index(rows.pages, rows.slots[:, None], visible, per_page),
        rope.cos_sin(entry.clamp(min=0) * ratio, freqs),
    )


def cache_bytes(c: Config, g: Geometry, dtype: torch.dtype) -> int:
    """Bytes of all caches of the target and the drafter; nothing is allocated."""
    ratios = [*c.compress_ratios, *[0] * c.num_nextn_predict_layers]
    layers = [allocate_layer(c, ratio, g, dtype, torch.device("meta")) for ratio in ratios]
    return sum(tensor.nbytes for layer in layers for tensor in vars(layer).values() if tensor is not None)


@dataclass(frozen=True)
class LayerCache:
    """One layer's tensors; see caches.core for the two extra rows of each.

    window [slots·ring, d]; state and index_state: compressor rings; entries and index_keys: paged.
    """

    window: Tensor
    state: Tensor | None = None
    entries: Tensor | None = None
    index_state: Tensor | None = None
    index_keys: Tensor | None = None


def allocate_layer(c: Config, ratio: int, g: Geometry, dtype: torch.dtype, device: torch.device) -> LayerCache:
    """Static tensors of a layer of this ratio (0: sliding window only)."""

    def ring(window: int, width: int) -> Tensor:
        return cache.allocate(g.ring_slots * cache.ring_length(window, g), width, dtype, device)

    def paged(width: int) -> Tensor:
        return cache.allocate(g.num_pages * cache.entries_per_page(g.page_size, ratio), width, dtype, device)

    window = ring(c.sliding_window, c.head_dim)
    if not ratio:
        return LayerCache(window)
    overlap = c.state_width(ratio)
    state, entries = ring(ratio * overlap, 2 * overlap * c.head_dim), paged(c.head_dim)
    if ratio != OVERLAPPED_RATIO:
        return LayerCache(window, state, entries)
    index_state = ring(ratio * overlap, 2 * overlap * c.index_head_dim)
    return LayerCache(window, state, entries, index_state, paged(c.index_head_dim))


def rings(c: Config, own: LayerCache, ratio: int, g: Geometry) -> Iterator[Ring]:
    """The rings of a layer of this ratio."""
    yield own.window, cache.ring_length(c.sliding_window, g)
    for state in (own.state, own.index_state):
        if state is not None:
            yield state, cache.ring_length(ratio * c.state_width(ratio), g)


def _add_entries(
    c: Config, w: CompressorWeights, x: Tensor, state: Tensor, entries: Tensor, index: CompressIndex
) -> None:
    """Write the rows' compressor state, then the entry of every window that a row closes."""
    cache.write(state, index.state_write, block.compressor_rows(w, x))
    pooled = block.compress(c, w, cache.read(state, index.state_read), index.state_read >= 0)
    cache.write(entries, index.entry_write, rope.rotate(pooled, *index.angles))


def _pick_entries(
    c: Config, w: AttentionWeights, p: block.Projected, own: LayerCache, index: CompressIndex, angles: Angles
) -> Tensor:
    """Entries that each row attends to [R, ≤ index_topk], as cache indices (-1: none)."""
    assert w.indexer is not None
    assert own.index_state is not None
    assert own.index_keys is not None
    _add_entries(c, w.indexer.compressor, p.x, own.index_state, own.index_keys, index)
    if index.entry_read.shape[1] <= c.index_topk:
        return index.entry_read
    q, heads = block.index_queries(c, w, p, *angles)
    keys = cache.read(own.index_keys, index.entry_read)
    scores = index_scores(q.unsqueeze(1), keys, heads.unsqueeze(1)).squeeze(1)
    scores = scores.masked_fill(index.entry_read < 0, float("-inf"))
    return index.entry_read.gather(1, scores.topk(c.index_topk, dim=-1).indices)


def _attend(
    c: Config,
    w: AttentionWeights,
    p: block.Projected,
    own: LayerCache,
    window: WindowIndex,
    index: CompressIndex | None,
    angles: Angles,
) -> Tensor:
    """p of R rows to attention output [R, h, d]."""
    cache.write(own.window, window.write, p.kv)
    kv, visible = cache.read(own.window, window.read), window.read >= 0
    if index is not None:
        assert w.compressor is not None
        assert own.state is not None
        assert own.entries is not None
        _add_entries(c, w.compressor, p.x, own.state, own.entries, index)
        chosen = index.entry_read if w.indexer is None else _pick_entries(c, w, p, own, index, angles)
        kv = torch.cat((kv, cache.read(own.entries, chosen)), dim=1)
        visible = torch.cat((visible, chosen >= 0), dim=1)
    return sink_attention(p.q.unsqueeze(1), kv, visible.unsqueeze(1), w.sink).squeeze(1)


@torch.compiler.nested_compile_region  # whoever compiles the model compiles one layer of each kind
def _layer(
    c: Config,
    w: LayerWeights,
    own: LayerCache,
    window: WindowIndex,
    index: CompressIndex | None,
    angles: Angles,
    tokens: Tensor,
    streams: Tensor,
) -> Tensor:
    """One decoder layer on streams [R, H, D]; ``index`` None: sliding window only."""

    def attend(a: AttentionWeights, p: block.Projected) -> Tensor:
        return _attend(c, a, p, own, window, index, angles)

    return block.layer(c, w, streams, tokens, *angles, attend)[0]


class DeepseekV4Target:
    """The target with its caches. See models.core.Target for the contract."""

    def __init__(self, c: Config, w: Weights, g: Geometry, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.weights, self.geometry = c, w, g
        self.num_streams, self.hidden_size, self.vocab_size = c.hc_mult, c.hidden_size, c.vocab_size
        self.caches = tuple(allocate_layer(c, r, g, dtype, device) for r in c.compress_ratios)
        by_layer = zip(self.caches, c.compress_ratios, strict=True)
        self.rings = tuple(ring for own, ratio in by_layer for ring in rings(c, own, ratio, g))
        self._plain, self._scaled = (f.to(device) for f in block.rope_tables(c))

    def forward(self, rows: Rows) -> Tensor:
        """Rows to residual streams [R, H, D]; writes every layer's caches."""
        c, at = self.config, rows.positions.clamp(min=0)
        plain, scaled = rope.cos_sin(at, self._plain), rope.cos_sin(at, self._scaled)
        window = window_index(rows, c.sliding_window, cache.ring_length(c.sliding_window, self.geometry))
        by_ratio = {r: compress_index(rows, r, c.state_width(r), self.geometry, self._scaled) for r in c.ratios}
        streams = block.embed(c, self.weights, rows.tokens)
        for w, own, ratio in zip(self.weights.layers, self.caches, c.compress_ratios, strict=True):
            angles, index = (scaled, by_ratio[ratio]) if ratio else (plain, None)
            streams = _layer(c, w, own, window, index, angles, rows.tokens, streams)
        return streams

    def logits(self, streams: Tensor) -> Tensor:
        """Streams [R, H, D] to float32 logits [R, V]."""
        return block.logits(self.config, self.weights.head, self.weights.hc_head, self.weights.norm, streams)

    def greedy(self, streams: Tensor) -> Tensor:
        """The likeliest token of each row [R]."""
        return self.logits(streams).argmax(-1)


class DeepseekV4Drafter:
    """The MTP block with its own ring; shares embedding and head with the target."""

    vocab: Tensor | None = None

    def __init__(self, c: Config, w: Weights, g: Geometry, dtype: torch.dtype, device: torch.device) -> None:
        assert w.mtp is not None
        self.config, self.weights, self.mtp, self.geometry = c, w, w.mtp, g
        self.cache = allocate_layer(c, 0, g, dtype, device)
        self.rings = tuple(rings(c, self.cache, 0, g))
        self._plain = block.rope_tables(c)[0].to(device)

    def forward(self, rows: Rows, hidden: Tensor) -> Tensor:
        """Tokens at position + 1 and streams [R, H, D] at position to the MTP layer's streams [R, H, D]."""
        c = self.config
        angles = rope.cos_sin(rows.positions.clamp(min=0), self._plain)
        window = window_index(rows, c.sliding_window, cache.ring_length(c.sliding_window, self.geometry))
        streams = block.mtp_streams(c, self.mtp, self.weights.embed[rows.tokens], hidden)

        def attend(a: AttentionWeights, p: block.Projected) -> Tensor:
            return _attend(c, a, p, self.cache, window, None, angles)

        return block.layer(c, self.mtp.layer, streams, rows.tokens, *angles, attend)[0]

    def logits(self, streams: Tensor) -> Tensor:
        """The MTP layer's streams [R, H, D] to float32 logits [R, V]."""
        return block.logits(self.config, self.weights.head, self.mtp.hc_head, self.mtp.norm, streams)

    def greedy(self, streams: Tensor) -> Tensor:
        """The likeliest token of each row [R]."""
        return self.logits(streams).argmax(-1)
