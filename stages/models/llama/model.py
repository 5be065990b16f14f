"""Llama-style decoders on position-addressed, paged caches: R rows in, hidden states out.

Knows: which cache rows each row writes and reads. Does not know: requests, layouts, waves.

As everywhere, a call with R rows costs the same whatever the rows are, and a row's result is bitwise the same beside
any neighbours: all shapes depend on R and the deployment's sizes only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.stages.caches import core as cache
from draftline.stages.caches.core import Geometry
from draftline.stages.models.core import Ring, Rows

from . import block
from .config import Config
from .weights import LayerWeights, Weights


@dataclass(frozen=True)
class KeyValueCache:
    """One layer's keys and values, paged: [pages · page_size + 2, kv heads · head_dim] each; see caches.core."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class PositionIndex:
    """Cache rows of a call: where each row writes [R], and what it reads [R, L], position 0 first, -1 beyond its
    own."""

    write: Tensor
    read: Tensor


def allocate(c: Config, g: Geometry, dtype: torch.dtype, device: torch.device) -> KeyValueCache:
    """Static tensors of one layer."""
    rows = g.num_pages * g.page_size
    return KeyValueCache(cache.allocate(rows, c.kv_size, dtype, device), cache.allocate(rows, c.kv_size, dtype, device))


def cache_bytes(c: Config, g: Geometry, dtype: torch.dtype) -> int:
    """Bytes of all caches of the target; nothing is allocated."""
    one = allocate(c, g, dtype, torch.device("meta"))
    return c.num_hidden_layers * (one.keys.nbytes + one.values.nbytes)


def position_index(rows: Rows, g: Geometry) -> PositionIndex:
    """Every position up to the row's own, through the block table."""
    at = torch.arange(g.pages_per_slot * g.page_size, device=rows.positions.device)
    seen = torch.where(at <= rows.positions[:, None], at, -1)
    return PositionIndex(
        cache.page_index(rows.pages, rows.slots, rows.positions, g.page_size),
        cache.page_index(rows.pages, rows.slots[:, None], seen, g.page_size),
    )


def attend(c: Config, own: KeyValueCache, index: PositionIndex, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Write k and v [R, kv heads, d], then attend: q [R, h, d] to [R, h, d]."""
    cache.write(own.keys, index.write, k.flatten(1))
    cache.write(own.values, index.write, v.flatten(1))
    keys, values = (cache.read(t, index.read).unflatten(-1, (-1, c.head_dim)) for t in (own.keys, own.values))
    return block.grouped_attention(q, keys, values, index.read >= 0)


class LlamaTarget:
    """The target with its caches. See models.core.Target for the contract; there is one residual stream."""

    def __init__(self, c: Config, w: Weights, g: Geometry, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.weights, self.geometry = c, w, g
        self.num_streams, self.hidden_size, self.vocab_size = 1, c.hidden_size, c.vocab_size
        self.caches = tuple(allocate(c, g, dtype, device) for _ in range(c.num_hidden_layers))
        self.rings: tuple[Ring, ...] = ()
        freqs, scale = block.rope_table(c)
        self._table = (freqs.to(device), scale)

    def forward(self, rows: Rows) -> Tensor:
        """Rows to hidden states [R, 1, D] before the last norm; writes every layer's cache."""
        cos, sin = block.angles(rows.positions.clamp(min=0), self._table)
        index = position_index(rows, self.geometry)
        x = self.weights.embed[rows.tokens]
        for w, own in zip(self.weights.layers, self.caches, strict=True):
            x = _layer(self.config, w, own, index, x, cos, sin)
        return x.unsqueeze(1)

    def logits(self, streams: Tensor) -> Tensor:
        """Hidden states [R, 1, D] to float32 logits [R, V]."""
        return block.head(self.config, self.weights.norm, self.weights.head, streams.squeeze(1))

    def greedy(self, streams: Tensor) -> Tensor:
        """The likeliest token of each row [R]."""
        return self.logits(streams).argmax(-1)


@torch.compiler.nested_compile_region  # whoever compiles the model compiles one layer, and calls it for each
def _layer(
    c: Config, w: LayerWeights, own: KeyValueCache, index: PositionIndex, x: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    return block.layer(c, w, x, cos, sin, lambda q, k, v: attend(c, own, index, q, k, v))
