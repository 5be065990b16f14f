"""Which tokens may follow: masks over a vocabulary, made for the states that a text visits, when it does.

Knows: automata, tokens, what is kept and for how long. Does not know: requests, windows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from draftline.stages.sampling.params import Grammar

from .automaton import DEAD, Automaton, compile_regex
from .forms import regex_of
from .tokens import Tokens

END = -1
"""The state after an end-of-sequence token: nothing but another can follow."""
MOST_AUTOMATA, MOST_MASKS = 16, 1024
"""Kept in a process; the one that was not used for longest goes."""

T = TypeVar("T")


class Matcher:
    """A grammar over a vocabulary. A state is a number, so to go back is to use an older one."""

    def __init__(self, automaton: Automaton, tokens: Tokens) -> None:
        self.start = automaton.start
        self._automaton, self._tokens = automaton, tokens
        self._masks: OrderedDict[int, Tensor] = OrderedDict()

    def advance(self, state: int, token: int) -> int:
        """The state after a token; DEAD if it cannot follow."""
        if token in self._tokens.ends:
            return END if state == END or self._automaton.final[max(state, DEAD)] else DEAD
        text = self._tokens.text.get(token)
        return DEAD if text is None or state == END else self._automaton.run(state, text)

    def mask(self, state: int) -> Tensor:
        """The tokens that can follow, [V] bool; the caller must not change it. An end-of-sequence token follows exactly
        where the text may end."""
        return _kept(self._masks, state, lambda: self._mask(state), MOST_MASKS)

    def _mask(self, state: int) -> Tensor:
        t = self._tokens
        allowed = torch.zeros(t.vocab_size, dtype=torch.bool)
        if state == END or self._automaton.final[state]:
            allowed[list(t.ends)] = True
        if state in (END, DEAD):
            return allowed
        # All tokens at once, a byte at a time; whoever is dead drops out.
        rows, states = np.arange(len(t.ids)), np.full(len(t.ids), state, dtype=np.uint16)
        for column in t.columns:
            here = int(np.searchsorted(rows, len(column)))  # of these rows, those that go on so far
            states[:here] = self._automaton.table[states[:here], column[rows[:here]]]
            alive = states != DEAD
            rows, states = rows[alive], states[alive]
        allowed[torch.from_numpy(t.ids[rows])] = True
        return allowed


class Grammars:
    """The grammars of a process, over the vocabulary of its model, which is read when the first is wanted."""

    def __init__(self, read: Callable[[], Tokens]) -> None:
        self._read = read
        self._tokens: Tokens | None = None
        self._matchers: OrderedDict[Grammar, Matcher] = OrderedDict()

    def of(self, grammar: Grammar) -> Matcher:
        """Raises RequestError and ModelError for what the driver should have refused."""
        if self._tokens is None:
            self._tokens = self._read()
        tokens = self._tokens
        return _kept(self._matchers, grammar, lambda: Matcher(compile_regex(regex_of(grammar)), tokens), MOST_AUTOMATA)


def _kept(known: OrderedDict, key: object, make: Callable[[], T], most: int) -> T:
    """The value of a key, made if it is not there."""
    found: T | None = known.pop(key, None)
    known[key] = found = make() if found is None else found
    if len(known) > most:
        known.popitem(last=False)
    return found
