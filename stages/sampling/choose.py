"""A row's token from its scores: the rule that makes speculation exact, in two functions.

Knows: point-mass drafts and sampled drafts. Does not know: how scores came about, where acceptance counts.

``accept.greedy`` lets a draft stand if and only if it is the row's own token. So all that is random is the row's token,
and both functions choose it so that "accept iff equal" is rejection sampling (Leviathan et al. 2023, arXiv:2211.17192)
with the true q. The proofs are in docs/sampling.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import noise
from .processors import OUT, Scores


def choose(scores: Scores, seed: Tensor, position: Tensor, use: noise.Use = noise.TARGET) -> Tensor:
    """The token [R] of each row, of law softmax(scores): argmax(score + Gumbel noise), which depends on the scores and
    on (seed [R], position [R], use) alone; no draft has a say. position: that of the token to be chosen."""
    return scores.tokens(_gumbel_max(scores.values, scores.ids, noise.key(seed, position, use)))


def choose_after_draft(scores: Scores, seed: Tensor, position: Tensor, draft: Tensor, q: Tensor) -> Tensor:
    """The token [R] of each row whose next column holds draft [R], which was drawn from q [R, V] float32 (rows that sum
    to 1). The draft itself with probability min(1, p(d) / q(d)), else a token of law max(p - q, 0), normalised, which
    is never d; so together of law p = softmax(scores)."""
    p = scores.dense().softmax(1)
    at = draft[:, None]
    u = noise.uniforms(seed, position, noise.ACCEPT)
    stands = u * q.gather(1, at)[:, 0] < p.gather(1, at)[:, 0]
    rest = (p - q).clamp_(min=0).log_()  # log 0 = -inf: out
    other = _gumbel_max(rest, None, noise.key(seed, position, noise.RESIDUAL))
    # Where rounding leaves nothing of p - q, p is q, and every draft stands.
    return torch.where(stands | (rest.amax(1) == OUT), draft, other)


def _gumbel_max(values: Tensor, ids: Tensor | None, keys: Tensor) -> Tensor:
    tokens = torch.arange(values.shape[1], device=values.device) if ids is None else ids
    noisy = noise.gumbel(keys, tokens).add_(values)
    return noisy.argmax(1)
