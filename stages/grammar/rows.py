"""The tokens that the rows of a wave may have, from the journal and the window alone.

Knows: which state each slot's committed tokens lead to. Does not know: logits, acceptance.

A row's state is the one after the journal and the drafts in the columns before it. Nothing is kept of drafts, so there
is nothing to undo when they are rejected; what is kept of the journal can be made again from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.graph.errors import StageError
from draftline.stages.sampling.sampler import Before, WaveRows
from draftline.stages.sampling.wire import Tenant

from .automaton import DEAD
from .matcher import Grammars, Matcher


@dataclass(frozen=True)
class Reached:
    """The state after the first ``count`` output tokens of a tenant."""

    uid: int
    count: int
    state: int
    matcher: Matcher


class Constraints:
    """Of one stage: where each slot's text has got to."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._reached: dict[int, Reached] = {}

    def allowed(self, tenants: Mapping[int, Tenant], wave: WaveRows, before: Before, vocab: int) -> Tensor | None:
        """[R, V] bool: the tokens that each row may have; None: all may have any. Behind a draft that cannot be, where
        no row counts, any may be. Raises StageError where the graph does not give the journal."""
        slots = wave.slots.tolist()
        mine = [r for r, n in enumerate(slots) if n in tenants and tenants[n].params.grammar is not None]
        if not mine:
            return None
        if before.history is None or before.window is None:
            raise StageError("a grammar needs inputs 'history' and 'window' of stage verify; the graph lacks one")
        allowed = torch.ones(len(slots), vocab, dtype=torch.bool)
        columns, positions = wave.columns.tolist(), wave.positions.tolist()
        for n in dict.fromkeys(slots[r] for r in mine):
            rows = [r for r in mine if slots[r] == n]
            tail = positions[rows[0]] - columns[rows[0]]
            at = self.committed(n, tenants[n], before.history[n], tail)
            states = [at.state]
            for draft in before.window[n, 1 : 1 + max(columns[r] for r in rows)].tolist():
                states.append(at.matcher.advance(states[-1], draft))
            for r in rows:
                if states[columns[r]] != DEAD or not columns[r]:
                    allowed[r] = at.matcher.mask(states[columns[r]])
        return allowed

    def committed(self, n: int, who: Tenant, history: Tensor, tail: int) -> Reached:
        """After the tokens [≥ tail + 1] of slot n up to its tail."""
        known = self._reached.get(n)
        if known is None or known.uid != who.uid:
            assert who.params.grammar is not None
            if self._grammars is None:
                raise StageError("a grammar needs the model's tokenizer, and this worker was given none")
            matcher = self._grammars.of(who.params.grammar)
            known = Reached(who.uid, 0, matcher.start, matcher)
        state = known.state
        for token in history[who.prompt + known.count : tail + 1].tolist():
            state = known.matcher.advance(state, token)
        known = self._reached[n] = Reached(who.uid, tail + 1 - who.prompt, state, known.matcher)
        return known
