"""From a row's logits to the scores that its token is drawn by: one function per parameter, and their order.

Knows: formulas, on rows [R, V] float64 with a parameter per row. Does not know: slots, windows, randomness.

The order is vLLM's (V1): what is allowed, bad words, min_tokens, logit_bias and the penalties on the raw logits, then
temperature, min-p, top-k, top-p. A token that is out has the score -inf. float64 throughout: sums and exponentials may
differ in their last bit with the number of rows in a call, and in float64 that moves a choice once in 10^14 rows or so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

OUT = -math.inf
FEW = 1024
"""Tokens that are sorted, or given on by their ids, rather than looked at as a whole vocabulary."""
_SHIFT = 45
_LEAST = 959 << 7
_BUCKETS = (64 << 7) + 1
"""Buckets of weights in (0, 1]: 128 for each power of two (float64's exponent and 7 more bits), down to 2^-64."""


@dataclass(frozen=True)
class Scores:
    """``values`` [R, C] float64 of the tokens ``ids`` [R, C]; None: token i in column i. ``vocab``: V."""

    values: Tensor
    ids: Tensor | None
    vocab: int

    def dense(self) -> Tensor:
        """[R, V], -inf where a token is no candidate."""
        if self.ids is None:
            return self.values
        whole = self.values.new_full((len(self.values), self.vocab), OUT)
        return whole.scatter_(1, self.ids, self.values)

    def tokens(self, column: Tensor) -> Tensor:
        """column [R] to token ids [R]."""
        return column if self.ids is None else self.ids.gather(1, column[:, None])[:, 0]


def add_bias(x: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """x [R, V] with ``values`` added at ``ids``, in place. A bias of -inf is as good as a ban."""
    return x.index_add_(1, ids, values.expand(len(x), -1).contiguous())


def ban_words(x: Tensor, before: Tensor, last: Tensor, ahead: Tensor) -> Tensor:
    """x [R, V] with the last tokens [B] out, in place, wherever the tokens before, ahead [B, m] (-1: any), are what the
    row follows: before [R, m], -1 where there is no token yet."""
    hit = ((before[:, None] == ahead) | (ahead < 0)).all(-1)  # [R, B]
    row, word = hit.nonzero(as_tuple=True)
    x[row, last[word]] = OUT
    return x


@dataclass(frozen=True)
class Past:
    """The tokens before each row: ids [R, C]; ``real`` [R, C] those that exist, ``output`` [R, C] those of them that
    are no prompt."""

    ids: Tensor
    real: Tensor
    output: Tensor


def penalise(x: Tensor, past: Past, repetition: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
    """x [R, V]; penalties [R] float64. Repetition (Keskar et al. 2019, arXiv:1909.05858): the logit of a token that was
    there is divided by it where positive, multiplied where not. Presence and frequency (OpenAI): subtracted, the latter
    times the token's count in the output."""
    ids, none = past.ids.clamp(min=0), torch.zeros_like(x)
    # Of the tokens that were there alone. Where an id comes twice, also for a token that does not exist, the same value
    # is written twice.
    seen = none.scatter_add(1, ids, past.real.to(x.dtype)).gather(1, ids) > 0
    count = none.scatter_add_(1, ids, past.output.to(x.dtype)).gather(1, ids)
    r, own = repetition[:, None], x.gather(1, ids)
    own = torch.where(seen, torch.where(own > 0, own / r, own * r), own)
    return x.scatter(1, ids, own - frequency[:, None] * count - presence[:, None] * (count > 0))


def temper(x: Tensor, temperature: Tensor) -> Tensor:
    """x / temperature [R], above 0."""
    return x / temperature[:, None]


def keep_min_p(x: Tensor, min_p: Tensor) -> Tensor:
    """Tokens of at least min_p [R] times the likeliest one's probability."""
    least = x.amax(1) + min_p.log()  # log 0 = -inf: all stay
    return x.masked_fill(x < least[:, None], OUT)


def keep_top(x: Tensor, top_k: Tensor, top_p: Tensor) -> Scores:
    """Of x [R, V] the top_k [R] int64 largest (0 or below: all; equals of the last all stay), and of these the fewest
    that together have probability top_p [R] or more (1: all; of equals the lowest ids)."""
    vocab = x.shape[1]
    limited = (top_k > 0) & (top_k < vocab)
    if bool(limited.any()):
        most = int(torch.where(limited, top_k, 1).max())
        least = x.topk(most, 1).values.gather(1, (top_k.clamp(1, most) - 1)[:, None])
        x = x.masked_fill((x < least) & limited[:, None], OUT)
    nucleus = top_p < 1
    if bool(nucleus.all()):
        return _keep_p(x, top_p)
    if bool(nucleus.any()):
        x = x.clone()
        x[nucleus] = _keep_p(x[nucleus], top_p[nucleus]).dense()
    return _compact(x)


def _keep_p(x: Tensor, p: Tensor) -> Scores:
    weight = (x - x.amax(1, keepdim=True)).exp_()
    wanted = (p * weight.sum(1))[:, None]
    if x.shape[1] <= FEW:
        values, ids = x.sort(dim=1, descending=True, stable=True)
        out = _superfluous(weight.gather(1, ids), 0.0, wanted)
        return Scores(values.masked_fill(out, OUT), ids, x.shape[1])
    # A sort of the vocabulary costs ten times the rest. Weights fall into buckets by their leading bits; only the one
    # in which the mass that is wanted becomes full has to be sorted.
    bucket = (weight.view(torch.int64) >> _SHIFT).sub_(_LEAST).clamp_(min=0)
    mass = weight.new_zeros(len(x), _BUCKETS).scatter_add_(1, bucket, weight)
    heavier = mass.flip(1).cumsum(1).flip(1).sub_(mass)
    edge = (heavier < wanted).max(1, keepdim=True).indices  # the first that is true
    here, kept = bucket == edge, bucket > edge
    ids = torch.where(here, weight, -1.0).topk(int(here.sum(1).max()), 1).indices.sort(1).values
    values, order = torch.where(here, weight, -1.0).gather(1, ids).sort(dim=1, descending=True, stable=True)
    ids = ids.gather(1, order)
    inside = ~_superfluous(values.clamp(min=0), heavier.gather(1, edge), wanted)
    kept.scatter_(1, ids, torch.where(values >= 0, inside, kept.gather(1, ids)))
    return _compact(x.masked_fill(~kept, OUT))


def _superfluous(weight: Tensor, heavier: Tensor | float, wanted: Tensor) -> Tensor:
    """Which of the weights [R, C], in descending order, the larger ones and those ``heavier`` [R, 1] still can do
    without: these have the mass ``wanted`` [R, 1]."""
    return (weight.cumsum(1).sub_(weight).add_(heavier)) >= wanted


def _compact(x: Tensor) -> Scores:
    """Only the candidates, where they are few: noise is drawn for each."""
    most = int((x > OUT).sum(1).max())
    if most > FEW or 4 * most > x.shape[1]:
        return Scores(x, None, x.shape[1])
    values, ids = x.topk(most, 1)
    return Scores(values, ids, x.shape[1])


def row_tensor(values: Sequence[float]) -> Tensor:
    """One float64 per row."""
    return torch.tensor(values, dtype=torch.float64)
