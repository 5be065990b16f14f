"""What a drafter may propose next, draft by draft.

Knows: the state that the drafts of this step have led to. Does not know: how drafts are made, whether they stand.

It only makes drafts stand more often: what is not masked here is rejected by stage ``verify``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.stages.core import Call, Inputs
from draftline.stages.sampling.processors import OUT
from draftline.stages.sampling.wire import Tenants

from .automaton import DEAD
from .matcher import Grammars, Matcher
from .rows import Constraints


class Course:
    """Of one drafting stage. Its inputs are the token [N] before each draft, position, sampling and history."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._constraints, self._tenants = Constraints(grammars), Tenants()
        self._states: dict[int, tuple[Matcher, int]] = {}

    def masks(self, call: Call, inputs: Inputs) -> dict[int, Tensor]:
        """By slot, the tokens [V] bool that this draft may be; slots without a grammar may have any."""
        if call.iteration == 0:
            self._states = self._begin(inputs)
        elif self._states:
            tokens = inputs["token"].tolist()
            self._states = {n: (m, m.advance(state, tokens[n])) for n, (m, state) in self._states.items()}
        return {n: m.mask(state) for n, (m, state) in self._states.items() if state != DEAD}

    def _begin(self, inputs: Inputs) -> dict[int, tuple[Matcher, int]]:
        history = inputs["history"]
        if inputs["sampling"] is None or history is None:
            return {}
        found = {}
        for n, who in self._tenants.of(inputs["sampling"]).items():
            if who.params.grammar is not None:
                at = self._constraints.committed(n, who, history[n], int(inputs["position"][n]))
                found[n] = at.matcher, at.state
        return found


def masked(logits: Tensor, masks: Mapping[int, Tensor]) -> Tensor:
    """Logits [N, V] without what the masks leave out, by slot. Where nothing would be left, a draft vocabulary lacks
    what can follow, and all stays."""
    logits = logits.clone()
    for n, mask in masks.items():
        row = torch.where(mask, logits[n], OUT)
        if bool((row > OUT).any()):
            logits[n] = row
    return logits
