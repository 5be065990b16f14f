"""The tokens of a wave's rows, each by its own request's parameters.

Knows: which row belongs to which slot, what came before it. Does not know: acceptance, which model gave the logits.

A row's token depends on its logits, its request's parameters, the tokens before it and its position: on nothing else.
Tokens before it are the journal's and, within the window, the drafts in the columns before: wherever the row's token
counts, those drafts were accepted, so each row sees each accepted token in turn, and no other row counts.

Sizes are looked at on the host, where the parameters are: this sampler is for devices that share the host's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.graph.errors import StageError

from .choose import choose, choose_after_draft
from .noise import signed
from .processors import (
    OUT,
    Past,
    Scores,
    add_bias,
    ban_words,
    keep_min_p,
    keep_top,
    penalise,
    row_tensor,
    temper,
)
from .wire import Tenant

NOTHING = -1
"""In place of a token: there is none that the request allows. No draft is it, so it is the last of its step."""


@dataclass(frozen=True)
class WaveRows:
    """R rows of a wave: slots, positions and window columns [R] int64."""

    slots: Tensor
    positions: Tensor
    columns: Tensor

    def at(self, rows: Sequence[int]) -> WaveRows:
        return WaveRows(self.slots[rows], self.positions[rows], self.columns[rows])


@dataclass(frozen=True)
class Before:
    """The tokens before any row: history [N, L] up to each tail, the window [N, ≥ column + 1] from the tail on."""

    history: Tensor | None
    window: Tensor | None


@dataclass(frozen=True)
class Drafted:
    """How drafts were drawn: window [N, ≥ column + 2], depth [N], and the laws probs [N, K, V] of columns 1 … K."""

    window: Tensor
    depth: Tensor
    probs: Tensor


def pick(
    logits: Tensor,
    tenants: Mapping[int, Tenant],
    wave: WaveRows,
    before: Before,
    drafted: Drafted | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """The token [R] of each row of logits [R, V] float32; slots without a tenant get the likeliest, the very one that
    ``target.greedy`` gives. ``allowed`` [R, V] bool: tokens that a row may be at all, as its grammar has it; it is
    applied before anything else. NOTHING where a request leaves no token to its row. Raises StageError where a row
    needs what the graph does not give."""
    predicted = logits.argmax(1)
    slots = wave.slots.tolist()
    mine = [r for r, n in enumerate(slots) if n in tenants and not _likeliest_will_do(tenants[n])]
    if not mine:
        return predicted
    who, rows = [tenants[slots[r]] for r in mine], wave.at(mine)
    x = logits[mine].double()
    if allowed is not None:
        x = x.masked_fill_(~allowed[mine], OUT)
    x = shape(x, who, rows, before)
    empty = x.amax(1) == OUT
    if bool(empty.any()):
        x[empty] = 0.0
    chosen = x.argmax(1)
    hot = [i for i, one in enumerate(who) if not one.params.cold]
    if hot:
        warm = [who[i] for i in hot]
        chosen[hot] = _draw(narrow(x[hot], warm), warm, rows.at(hot), drafted)
    predicted[mine] = torch.where(empty, NOTHING, chosen)
    return predicted


def _likeliest_will_do(who: Tenant) -> bool:
    p = who.params
    return p.cold and not (p.penalised or p.logit_bias or p.min_tokens or p.bad_words or p.grammar)


def shape(x: Tensor, who: Sequence[Tenant], rows: WaveRows, before: Before) -> Tensor:
    """x [R, V] float64 after what may change the likeliest token: bad words, min_tokens, logit_bias, penalties."""
    groups: dict[int, list[int]] = {}
    for r, one in enumerate(who):
        if one.params.bad_words or one.params.min_tokens or one.params.logit_bias:
            groups.setdefault(id(one), []).append(r)
    for mine in groups.values():
        x[mine] = _of_one(x[mine], who[mine[0]], rows.at(mine), before)
    marked = [r for r, one in enumerate(who) if one.params.penalised]
    if marked:
        p = [who[r].params for r in marked]
        x[marked] = penalise(
            x[marked],
            past(rows.at(marked), [who[r].prompt for r in marked], before),
            row_tensor([one.repetition_penalty for one in p]),
            row_tensor([one.presence_penalty for one in p]),
            row_tensor([one.frequency_penalty for one in p]),
        )
    return x


def _of_one(x: Tensor, one: Tenant, rows: WaveRows, before: Before) -> Tensor:
    """The rows of one request."""
    p = one.params
    if p.bad_words:
        last, ahead = one.words
        x = ban_words(x, latest(rows, one.prompt, before, ahead.shape[1]), last, ahead)
    if p.min_tokens:
        early = rows.positions + 1 - one.prompt < p.min_tokens  # output tokens before this one
        x[:, one.ends] = torch.where(early[:, None], OUT, x[:, one.ends])
    return add_bias(x, *one.biased) if p.logit_bias else x


def narrow(x: Tensor, who: Sequence[Tenant]) -> Scores:
    """x [R, V] float64 after what only takes candidates away: temperature, min-p, top-k, top-p."""
    p = [one.params for one in who]
    x = temper(x, row_tensor([one.temperature for one in p]))
    if any(one.min_p for one in p):
        x = keep_min_p(x, row_tensor([one.min_p for one in p]))
    return keep_top(x, torch.tensor([one.top_k for one in p]), row_tensor([one.top_p for one in p]))


def _draw(scores: Scores, who: Sequence[Tenant], rows: WaveRows, drafted: Drafted | None) -> Tensor:
    seed, following = torch.tensor([signed(one.params.seed) for one in who]), rows.positions + 1
    drawn = choose(scores, seed, following)
    if drafted is None or not drafted.probs.shape[1]:
        return drawn
    judged = rows.columns < drafted.depth[rows.slots]  # a draft follows the row
    column = rows.columns.clamp(max=drafted.probs.shape[1] - 1)
    draft, q = drafted.window[rows.slots, column + 1], drafted.probs[rows.slots, column]
    return torch.where(judged, choose_after_draft(scores, seed, following, draft, q), drawn)


def past(rows: WaveRows, prompts: Sequence[int], before: Before) -> Past:
    """All tokens before each row: of the journal, then of the window's columns 1 … column."""
    history, window = _given(before)
    tail = (rows.positions - rows.columns)[:, None]
    at = torch.arange(int(tail.max()) + 1)
    column = torch.arange(1, int(rows.columns.max()) + 1)
    n, first = rows.slots, torch.tensor(prompts)[:, None]
    ids = torch.cat((history[n, : len(at)], window[n, 1 : 1 + len(column)]), 1)
    real = torch.cat((at <= tail, column <= rows.columns[:, None]), 1)
    output = torch.cat(((at >= first) & (at <= tail), column <= rows.columns[:, None]), 1)
    return Past(ids, real, output)


def latest(rows: WaveRows, prompt: int, before: Before, count: int) -> Tensor:
    """The last ``count`` output tokens before each row [R, count], the newest last; -1 where there were fewer."""
    if not count:
        return rows.positions.new_zeros(len(rows.positions), 0)
    history, window = _given(before)
    tail = (rows.positions - rows.columns)[:, None]
    at = rows.positions[:, None] - torch.arange(count - 1, -1, -1)
    n = rows.slots[:, None]
    inside = window[n, (at - tail).clamp(min=0)]
    return torch.where(at < prompt, -1, torch.where(at > tail, inside, history[n, at.clamp(min=0)]))


def _given(before: Before) -> tuple[Tensor, Tensor]:
    if before.history is None or before.window is None:
        lacks = "history" if before.history is None else "window"
        raise StageError(f"penalties and bad words need input {lacks!r} of stage verify; the graph does not connect it")
    return before.history, before.window
