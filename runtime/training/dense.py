"""A Llama-style target over whole sequences at once, for training and for writing text in bulk.

Knows: dense attention, sequences of different lengths in one batch. Does not know: paged caches, losslessness: text for
training may be whatever the target is likely to say.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.stages.models.llama import block
from draftline.stages.models.llama.config import Config
from draftline.stages.models.llama.weights import Weights


def hidden_states(c: Config, w: Weights, tokens: Tensor) -> Tensor:
    """tokens [B, L] to hidden states [B, L, D] before the last norm, causal; what stands behind a text does not
    matter to it."""
    cos, sin = block.angles(torch.arange(tokens.shape[1]), block.rope_table(c))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    x = w.embed[tokens]
    for layer in w.layers:
        x = block.layer(c, layer, x, cos, sin, attend)
    return x


class Writer:
    """Continues a batch of prompts, all at once. Keys and values [B, kv heads, length, d] of each layer."""

    def __init__(self, c: Config, w: Weights, batch: int, length: int) -> None:
        self._c, self._w, self._batch, self._length = c, w, batch, length
        shape = (batch, c.num_key_value_heads, length, c.head_dim)
        self._keys = [torch.zeros(shape, dtype=w.embed.dtype) for _ in w.layers]
        self._values = [torch.zeros_like(k) for k in self._keys]
        self._table = block.rope_table(c)
        self.ends = frozenset(c.eos_token_ids)

    def write(
        self, prompts: Sequence[Sequence[int]], temperatures: Tensor, new: int, generator: torch.Generator
    ) -> list[list[int]]:
        """Prompts and up to ``new`` tokens each; a text ends behind an end-of-sequence token. ``temperatures`` [B]: 0
        takes the likeliest token, else one of the 50 likeliest is drawn."""
        b, ends = self._batch, self.ends
        out, lengths = [list(p) for p in prompts], torch.tensor([len(p) for p in prompts])
        wide = int(lengths.max())
        ids = torch.zeros(b, wide, dtype=torch.long)
        for row, p in zip(ids, prompts, strict=True):
            row[: len(p)] = torch.tensor(p)
        at = torch.arange(wide)
        x = self._forward(ids, at.expand(b, wide), (at <= at[:, None])[None, None], wide)
        last, position, open_ = x[torch.arange(b), lengths - 1], lengths.clone(), [True] * b
        for _ in range(min(new, self._length - wide)):
            tokens = self._draw(last, temperatures, generator)
            for i, token in enumerate(tokens.tolist()):
                if open_[i]:
                    out[i].append(token)
                    open_[i] = token not in ends
            if not any(open_):
                break
            upto = int(position.max()) + 1
            seen = (torch.arange(upto) <= position[:, None])[:, None, None]
            last = self._forward(tokens[:, None], position[:, None], seen, upto)[:, 0]
            position += 1
        return out

    def _draw(self, last: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
        scores = block.head(self._c, self._w.norm, self._w.head, last)
        best, ids = scores.topk(min(50, scores.shape[-1]), dim=-1)
        probs = (best / temperatures.clamp(min=1e-3)[:, None]).softmax(-1)
        drawn = torch.multinomial(probs, 1, generator=generator)
        return torch.where(temperatures > 0, ids.gather(1, drawn)[:, 0], ids[:, 0])

    def _forward(self, tokens: Tensor, positions: Tensor, seen: Tensor, upto: int) -> Tensor:
        """tokens and positions [B, S] to hidden states [B, S, D]; ``seen`` [B or 1, 1, S, upto]."""
        cos, sin = block.angles(positions, self._table)
        row = torch.arange(self._batch)[:, None]
        x = self._w.embed[tokens]
        for w, keys, values in zip(self._w.layers, self._keys, self._values, strict=True):

            def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor = keys, values: Tensor = values) -> Tensor:
                keys[row, :, positions], values[row, :, positions] = k, v
                k, v = keys[:, :, :upto], values[:, :, :upto]
                if q.shape[1] == 1:  # a group's heads as rows of one head: several times as fast as enable_gqa
                    grouped = q.view(self._batch, k.shape[1], -1, q.shape[-1])
                    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=seen).reshape(q.shape)
                q = q.transpose(1, 2)
                return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(1, 2)

            x = block.layer(self._c, w, x, cos, sin, attend)
        return x
