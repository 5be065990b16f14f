"""The MTP head as a drafter: R rows with the target's hidden states in, drafts out.

Knows: DeepSeek V3's MTP module (arXiv:2412.19437, §2.2) around a Llama-style layer, with a ring cache of its own. Does
not know: which target it serves, beyond its embedding and output matrices and its number of residual streams.

A target with several residual streams speaks through their mean, and the head answers with equal streams, so that its
own output can be fed to it again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.stages.caches import core as cache
from draftline.stages.caches.core import Geometry
from draftline.stages.kernels.norm import rms_norm
from draftline.stages.models.core import Ring, Rows
from draftline.stages.models.llama import block
from draftline.stages.models.llama.model import KeyValueCache

from .config import HeadConfig
from .weights import HeadWeights


def mix(c: HeadConfig, w: HeadWeights, embedding: Tensor, hidden: Tensor) -> Tensor:
    """Input of the layer [..., D] from the embedding of the token at i + 1 and the hidden state at i."""
    eps = c.layer.rms_norm_eps
    both = torch.cat((rms_norm(embedding, w.enorm, eps), rms_norm(hidden, w.hnorm, eps)), dim=-1)
    return F.linear(both, w.eh_proj)


def head_cache_bytes(c: HeadConfig, g: Geometry, dtype: torch.dtype) -> int:
    """Bytes of the head's cache; nothing is allocated."""
    rows = g.ring_slots * cache.ring_length(c.window, g)
    return 2 * cache.allocate(rows, c.layer.kv_size, dtype, torch.device("meta")).nbytes


class MtpHeadDrafter:
    """See models.core.Drafter for the contract."""

    def __init__(
        self,
        c: HeadConfig,
        w: HeadWeights,
        embed: Tensor,
        head: Tensor,
        g: Geometry,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """``embed`` and ``head`` [V, D] are the target's."""
        self.config, self.weights, self.vocab, self._embed = c, w, w.vocab, embed
        self._head = head if w.vocab is None else head[w.vocab].contiguous()
        self._ring = cache.ring_length(c.window, g)
        self.cache = KeyValueCache(
            *(cache.allocate(g.ring_slots * self._ring, c.layer.kv_size, dtype, device) for _ in range(2))
        )
        self.rings: tuple[Ring, ...] = ((self.cache.keys, self._ring), (self.cache.values, self._ring))
        freqs, scale = block.rope_table(c.layer)
        self._table = (freqs.to(device), scale)
        self._back = torch.arange(c.window - 1, -1, -1, device=device)

    def forward(self, rows: Rows, hidden: Tensor) -> Tensor:
        """Tokens at position + 1 and streams [R, H, D] at position to the head's streams [R, H, D]."""
        c, own = self.config.layer, self.cache
        cos, sin = block.angles(rows.positions.clamp(min=0), self._table)
        write = cache.ring_index(rows.slots, rows.positions, self._ring)
        read = cache.ring_index(rows.slots[:, None], rows.positions[:, None] - self._back, self._ring)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(own.keys, write, k.flatten(1))
            cache.write(own.values, write, v.flatten(1))
            keys, values = (cache.read(t, read).unflatten(-1, (-1, c.head_dim)) for t in (own.keys, own.values))
            return block.grouped_attention(q, keys, values, read >= 0)

        one = hidden.squeeze(1) if hidden.shape[1] == 1 else hidden.float().mean(1).to(hidden.dtype)
        x = mix(self.config, self.weights, self._embed[rows.tokens], one)
        out = block.layer(c, self.weights.layer, x, cos, sin, attend)
        return out.unsqueeze(1).expand(-1, hidden.shape[1], -1)

    def logits(self, streams: Tensor) -> Tensor:
        """The head's streams [R, H, D] to float32 logits [R, V] (or [R, V'] of the draft vocabulary)."""
        return block.head(self.config.layer, self.weights.norm, self._head, streams[:, 0])

    def greedy(self, streams: Tensor) -> Tensor:
        """The head's streams [R, H, D] to the most likely draft of each row [R]."""
        best = self.logits(streams).argmax(-1)
        return best if self.vocab is None else self.vocab[best]
