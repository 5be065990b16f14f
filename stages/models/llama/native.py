"""A Llama-style target on the C++ decoder stack: the same contract as ``model.LlamaTarget``, the same caches.

Knows: how this family's weights go to the stack. Does not know: what the stack does. Residual sums stay in float32
here, so in bf16 its logits differ from the reference's by rounding; in float32 they agree to 1e-4 (a test).
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftline.stages.caches.core import Geometry
from draftline.stages.kernels.native.decoder import DecoderStack, Matrices, OutputMatrix, Sizes
from draftline.stages.models.core import Ring, Rows

from . import block
from .config import Config
from .model import KeyValueCache, allocate
from .weights import LayerWeights, Weights


def matrices(w: LayerWeights, own: KeyValueCache) -> Matrices:
    """One layer as the stack takes it."""
    gate, up = w.gate_up.chunk(2)
    gate_bias, up_bias = (None, None) if w.gate_up_bias is None else w.gate_up_bias.chunk(2)
    return Matrices(
        w.attn_norm,
        w.qkv,
        w.qkv_bias,
        w.q_norm,
        w.k_norm,
        w.o,
        w.o_bias,
        w.ffn_norm,
        gate,
        up,
        gate_bias,
        up_bias,
        w.down,
        w.down_bias,
        own.keys,
        own.values,
    )


def stack_sizes(c: Config, rope_scale: float, max_len: int, **cache: int) -> Sizes:
    """The config's part of the stack's sizes; ``cache`` is how its cache is addressed."""
    return Sizes(
        hidden=c.hidden_size,
        inner=c.intermediate_size,
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        eps=c.rms_norm_eps,
        rope_scale=rope_scale,
        max_len=max_len,
        **cache,
    )


class NativeLlamaTarget:
    """See models.core.Target for the contract; there is one residual stream. CPU only."""

    def __init__(self, c: Config, w: Weights, g: Geometry, dtype: torch.dtype) -> None:
        self.num_streams, self.hidden_size, self.vocab_size = 1, c.hidden_size, c.vocab_size
        self.caches = tuple(allocate(c, g, dtype, torch.device("cpu")) for _ in range(c.num_hidden_layers))
        self.rings: tuple[Ring, ...] = ()
        freqs, scale = block.rope_table(c)
        length = g.pages_per_slot * g.page_size
        sizes = stack_sizes(c, scale, length, page_size=g.page_size, pages_per_slot=g.pages_per_slot)
        layers = [matrices(layer, own) for layer, own in zip(w.layers, self.caches, strict=True)]
        self._stack = DecoderStack(sizes, layers, w.embed, freqs)
        self._output = OutputMatrix(w.norm, w.head, c.rms_norm_eps)

    def forward(self, rows: Rows) -> Tensor:
        """Rows to hidden states [R, 1, D] before the last norm; writes every layer's cache."""
        return self._stack.run(rows.tokens, rows.positions, rows.slots, rows.pages, None).unsqueeze(1)

    def logits(self, streams: Tensor) -> Tensor:
        """Hidden states [R, 1, D] to float32 logits [R, V]."""
        return self._output.logits(streams.squeeze(1))

    def greedy(self, streams: Tensor) -> Tensor:
        """Hidden states [R, 1, D] to the likeliest token of each row [R]."""
        return self._output.best(streams.squeeze(1))
