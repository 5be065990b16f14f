"""The MTP head on the C++ decoder stack: the same contract as ``model.MtpHeadDrafter``, the same ring.

Knows: how the head's weights go to the stack. Does not know: what the stack does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftline.stages.caches import core as cache
from draftline.stages.caches.core import Geometry
from draftline.stages.kernels.native.decoder import DecoderStack, OutputMatrix
from draftline.stages.models.core import Ring, Rows
from draftline.stages.models.llama import block
from draftline.stages.models.llama.model import KeyValueCache
from draftline.stages.models.llama.native import matrices, stack_sizes

from .config import HeadConfig
from .weights import HeadWeights


class NativeMtpHeadDrafter:
    """See models.core.Drafter for the contract. CPU only."""

    def __init__(
        self, c: HeadConfig, w: HeadWeights, embed: Tensor, head: Tensor, g: Geometry, dtype: torch.dtype
    ) -> None:
        """``embed`` and ``head`` [V, D] are the target's."""
        self.vocab, one, ring = w.vocab, c.layer, cache.ring_length(c.window, g)
        rows = (cache.allocate(g.ring_slots * ring, one.kv_size, dtype, torch.device("cpu")) for _ in range(2))
        self.cache = KeyValueCache(*rows)
        self.rings: tuple[Ring, ...] = ((self.cache.keys, ring), (self.cache.values, ring))
        freqs, scale = block.rope_table(one)
        sizes = stack_sizes(one, scale, c.window, ring=ring, window=c.window)
        mix = (w.enorm, w.hnorm, w.eh_proj)
        self._stack = DecoderStack(sizes, [matrices(w.layer, self.cache)], embed, freqs, mix)
        self._output = OutputMatrix(w.norm, head if w.vocab is None else head[w.vocab], one.rms_norm_eps)

    def forward(self, rows: Rows, hidden: Tensor) -> Tensor:
        """Tokens at position + 1 and streams [R, H, D] at position to the head's streams [R, H, D]."""
        one = hidden.squeeze(1) if hidden.shape[1] == 1 else hidden.float().mean(1).to(hidden.dtype)
        out = self._stack.run(rows.tokens, rows.positions, rows.slots, rows.pages, one)
        return out.unsqueeze(1).expand(-1, hidden.shape[1], -1)

    def logits(self, streams: Tensor) -> Tensor:
        """The head's streams [R, H, D] to float32 logits [R, V] (or [R, V'] of the draft vocabulary)."""
        return self._output.logits(streams[:, 0])

    def greedy(self, streams: Tensor) -> Tensor:
        """The head's streams [R, H, D] to the most likely draft of each row [R]."""
        best = self._output.best(streams[:, 0])
        return best if self.vocab is None else self.vocab[best]
