"""The MTP head unrolled to depth over whole sequences, and its loss.

Knows: which key each row of each pass sees while drafting, so that training sees what drafting sees. Does not know:
data, steps, files.

Row j of pass 0 is the head at position j with the target's hidden state; row j of pass k has the head's own output of
pass k-1 at j-1, as when drafting began at j-k. So it sees pass 0 up to j-k and pass m at j-k+m (training-time test, Li
et al. 2025, arXiv:2503.01840, applied to DeepSeek V3's module). Every pass at row j predicts what the target says at
j+1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.stages.kernels.norm import rms_norm
from draftline.stages.models.llama import block
from draftline.stages.models.mtp_head.config import HeadConfig
from draftline.stages.models.mtp_head.model import mix
from draftline.stages.models.mtp_head.weights import HeadWeights


def shift(x: Tensor, by: int) -> Tensor:
    """x [B, L, …] moved ``by`` positions later; zeros come in."""
    return x if by == 0 else F.pad(x, (0, 0) * (x.dim() - 2) + (by, 0))[:, : x.shape[1]]


def unroll(c: HeadConfig, w: HeadWeights, embedded: Tensor, hidden: Tensor, depth: int) -> list[Tensor]:
    """The head's outputs [B, L, D] of passes 0 … depth-1. ``embedded`` [B, L, D]: the token *after* each position;
    ``hidden`` [B, L, D]: the target's hidden state at each position."""
    length = embedded.shape[1]
    at = torch.arange(length)
    cos, sin = block.angles(at, block.rope_table(c.layer))
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    for k in range(depth):
        visible = (at[None] <= at[:, None] - k) & (at[None] > at[:, None] - c.window)

        def attend(q: Tensor, key: Tensor, value: Tensor, k: int = k, visible: Tensor = visible) -> Tensor:
            keys.append(key)
            values.append(value)
            return _attention(q, keys, values, k, visible)

        outputs.append(block.layer(c.layer, w.layer, mix(c, w, embedded, hidden), cos, sin, attend))
        hidden = shift(outputs[-1], 1)
    return outputs


def _attention(q: Tensor, keys: list[Tensor], values: list[Tensor], k: int, visible: Tensor) -> Tensor:
    """q [B, L, h, d] over pass 0 where ``visible`` [L, L], and over one row of each later pass; [B, L, h, d]."""
    b, length, h, d = q.shape
    kv = keys[0].shape[2]
    grouped = q.view(b, length, kv, h // kv, d)
    far = torch.einsum("blngd,bsnd->bngls", grouped, keys[0]).float() * d**-0.5
    far = far.masked_fill(~visible, float("-inf"))
    near = [(grouped * shift(keys[m], k - m).unsqueeze(3)).sum(-1).float() * d**-0.5 for m in range(1, k + 1)]
    scores = torch.cat((far, *(n.permute(0, 2, 3, 1).unsqueeze(-1) for n in near)), dim=-1)
    probs = scores.nan_to_num(neginf=-1e30).softmax(-1).to(q.dtype)  # the first k rows of pass k see nothing real
    out = torch.einsum("bngls,bsnd->blngd", probs[..., :length], values[0])
    for m in range(1, k + 1):
        share = probs[..., length + m - 1].permute(0, 3, 1, 2).unsqueeze(-1)
        out = out + share * shift(values[m], k - m).unsqueeze(3)
    return out.reshape(b, length, h, d)


class _Distance(torch.autograd.Function):
    """Mean cross entropy of the target's distribution against each pass's, chunk by chunk: the logits of one chunk only
    are ever in memory, and the gradients are made at once (∂/∂logits = softmax - target)."""

    @staticmethod
    def forward(
        ctx: Any, wanted: Tensor, matrix: Tensor, counted: Sequence[Tensor], chunk: int, *xs: Tensor
    ) -> tuple[Tensor, Tensor]:
        grads = [torch.zeros_like(x) for x in xs]
        loss, hits, rows = (torch.zeros(len(xs)) for _ in range(3))
        for start in range(0, len(wanted), chunk):
            part = slice(start, start + chunk)
            target = F.linear(wanted[part], matrix).float()
            best, target = target.argmax(-1), target.softmax(-1)
            for k, x in enumerate(xs):
                mine = counted[k][part]
                if not mine.any():
                    continue
                log = F.linear(x[part], matrix).float().log_softmax(-1)
                hits[k] += ((log.argmax(-1) == best) & mine).sum()
                rows[k] += mine.sum()
                loss[k] -= (torch.einsum("rv,rv->r", target, log) * mine).sum()
                slope = log.exp_().sub_(target).mul_(mine.unsqueeze(1)).to(matrix.dtype)
                grads[k][part] = F.linear(slope, matrix.t())
        ctx.save_for_backward(*(g / n.clamp(min=1) for g, n in zip(grads, rows, strict=True)))
        return loss / rows.clamp(min=1), hits / rows.clamp(min=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, *(g * grads[0][k] for k, g in enumerate(ctx.saved_tensors))


def losses(
    c: HeadConfig,
    w: HeadWeights,
    outputs: list[Tensor],
    wanted: Tensor,
    valid: Tensor,
    matrix: Tensor,
    chunk: int = 512,
) -> tuple[Tensor, Tensor]:
    """(loss per pass, share of rows whose best token is the target's, per pass), each [depth].

    ``wanted`` [B, L, D]: the target's normed hidden state at each position; ``valid`` [B, L]: rows whose token after
    next is part of the text; ``matrix`` [V', D]: output rows of the tokens that are trained. Later passes are counted
    on every second chunk of the shuffled rows: the logits are most of the work."""
    ahead = torch.cat((wanted[:, 1:], wanted[:, :1]), dim=1).flatten(0, 1)
    rows = valid.flatten().nonzero()[:, 0]
    rows = rows[torch.randperm(len(rows))]
    column, chunks = rows % valid.shape[1], torch.arange(len(rows)) // chunk
    counted = [(column >= k) & ((chunks % 2 == 0) | (k == 0)) for k in range(len(outputs))]
    xs = [rms_norm(out.flatten(0, 1)[rows], w.norm, c.layer.rms_norm_eps) for out in outputs]
    each, agree = _Distance.apply(ahead[rows], matrix, counted, chunk, *xs)
    return each, agree.detach()
