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
MOST_AUTOMATA, MOST_BYTES = 16, 128 << 20
"""Kept in a process: automata, and bytes of masks. The one that was not used for longest goes."""

K = TypeVar("K")
T = TypeVar("T")
Masks = OrderedDict[tuple["Matcher", int], Tensor]


class Matcher:
    """A grammar over a vocabulary. A state is a number, so to go back is to use an older one."""

    def __init__(self, automaton: Automaton, tokens: Tokens, masks: Masks | None = None) -> None:
        self.start = automaton.start
        self._automaton, self._tokens = automaton, tokens
        self._masks = OrderedDict() if masks is None else masks

    def advance(self, state: int, token: int) -> int:
        """The state after a token; DEAD if it cannot follow."""
        if token in self._tokens.ends:
            return END if state == END or self._automaton.final[max(state, DEAD)] else DEAD
        text = self._tokens.text.get(token)
        return DEAD if text is None or state == END else self._automaton.run(state, text)

    def mask(self, state: int) -> Tensor:
        """The tokens that can follow, [V] bool; the caller must not change it. An end-of-sequence token follows exactly
        where the text may end."""
        return _kept(self._masks, (self, state), lambda: self._mask(state), MOST_BYTES // self._tokens.vocab_size)

    def _mask(self, state: int) -> Tensor:
        t = self._tokens
        allowed = np.zeros(t.vocab_size, dtype=bool)
        if state == END or self._automaton.final[state]:
            allowed[list(t.ends)] = True
        if state in (END, DEAD):
            return torch.from_numpy(allowed)
        # All tokens at once, a byte at a time; whoever is dead drops out, and whoever has no more bytes is in.
        flat = self._automaton.table.ravel()
        rows, states = np.arange(len(t.ids)), np.full(len(t.ids), state, dtype=np.intp)
        for column in t.columns:
            here = int(np.searchsorted(rows, len(column)))  # of these rows, those that go on so far
            allowed[t.ids[rows[here:]]] = True
            rows = rows[:here]
            if not here:
                break
            states = flat.take(states[:here] * 256 + column.take(rows)).astype(np.intp)
            alive = states.nonzero()[0]
            if len(alive) < here:
                rows, states = rows.take(alive), states.take(alive)
        allowed[t.ids[rows]] = True
        return torch.from_numpy(allowed)


class Grammars:
    """The grammars of a process, over the vocabulary of its model, which is read when the first is wanted."""

    def __init__(self, read: Callable[[], Tokens]) -> None:
        self._read = read
        self._tokens: Tokens | None = None
        self._matchers: OrderedDict[Grammar, Matcher] = OrderedDict()
        self._masks: Masks = OrderedDict()

    def of(self, grammar: Grammar) -> Matcher:
        """Raises RequestError and ModelError for what the driver should have refused."""
        if self._tokens is None:
            self._tokens = self._read()
        tokens = self._tokens
        return _kept(self._matchers, grammar, lambda: self._made(grammar, tokens), MOST_AUTOMATA)

    def _made(self, grammar: Grammar, tokens: Tokens) -> Matcher:
        return Matcher(compile_regex(regex_of(grammar)), tokens, self._masks)


def _kept(known: OrderedDict[K, T], key: K, make: Callable[[], T], most: int) -> T:
    """The value of a key, made if it is not there."""
    found = known.pop(key, None)
    known[key] = found = make() if found is None else found
    if len(known) > most:
        known.popitem(last=False)
    return found
