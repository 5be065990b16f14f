"""From a regular expression to a table: one byte at a time, from state to state.

Knows: outlines-core's compiler. Does not know: tokens, JSON, requests.

The expression is compiled over the 256 bytes, not over a vocabulary: that takes milliseconds where a vocabulary of 49k
tokens takes seconds, and the few states that a text really visits are looked at later (``matcher.py``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from outlines_core import Index, Vocabulary  # type: ignore[import-untyped]

from draftline.graph.errors import RequestError

DEAD = 0
"""The state from which no text matches."""
MOST_STATES = 16_000
"""Of one automaton: 8 MB of table."""
FENCE = "\U0010ffff"
"""A noncharacter, put before and behind the expression, against two faults of the compiler (outlines-core 0.2.14). It
builds an automaton that searches, too, which without a fence is exponential in {0,n} before a quote that may also come
earlier (30 s at n = 20). And where a text may end, it forgets every byte after which it may not: no 1.5 after 1."""
_BYTES = {bytes([b]): [b] for b in range(256)}
_END = 256


@dataclass(frozen=True, eq=False)
class Automaton:
    """``table`` [S, 256] uint16: the next state; ``final`` [S] bool: a text may end here. ``start`` is alive, and from
    every state but DEAD some text leads to a final one."""

    table: np.ndarray
    final: np.ndarray
    start: int

    def run(self, state: int, text: bytes) -> int:
        """The state after more bytes."""
        for byte in text:
            state = int(self.table[state, byte])
        return state

    def matches(self, text: bytes) -> bool:
        return bool(self.final[self.run(self.start, text)])


def compile_regex(regex: str) -> Automaton:
    """An automaton for the texts that match as a whole. ``^`` first and ``$`` last are as good as nothing. Raises
    RequestError for an expression that is wrong, matches no text or takes too many states."""
    body = unanchored(regex)
    try:
        index = Index(f"{FENCE}(?:{body}){FENCE}", Vocabulary(_END, dict(_BYTES)))
    except ValueError as error:
        raise RequestError(f"the expression {_short(regex)} cannot be used: {_reason(str(error))}") from None
    moves = index.get_transitions()
    if len(moves) > MOST_STATES:
        raise RequestError(
            f"the expression {_short(regex)} takes {len(moves)} states; at most {MOST_STATES} are served"
        )
    number = {state: i for i, state in enumerate(moves, 1)}
    table = np.zeros((len(moves) + 1, 256), dtype=np.uint16)
    for state, following in moves.items():
        for byte, after in following.items():
            if byte != _END:
                table[number[state], byte] = number.get(after, DEAD)
    over = np.zeros(len(table), dtype=bool)
    over[[number[state] for state in index.get_final_states() if state in number]] = True
    start, ends = number[index.get_initial_state()], np.arange(len(table))
    for byte in FENCE.encode():
        start, ends = int(table[start, byte]), table[ends, byte]
    final = over[ends]
    table[over[table]] = DEAD
    alive = _reached(table, final)
    table[~alive[table]] = DEAD
    if not alive[start]:
        raise RequestError(f"no text matches the expression {_short(regex)}")
    return Automaton(table, final, start)


def _reached(table: np.ndarray, final: np.ndarray) -> np.ndarray:
    """Which states lead to a final one."""
    before: dict[int, list[int]] = defaultdict(list)
    for state in range(1, len(table)):
        for after in np.unique(table[state]).tolist():
            before[after].append(state)
    alive, todo = np.zeros_like(final), np.flatnonzero(final).tolist()
    while todo:
        state = todo.pop()
        if not alive[state]:
            alive[state] = True
            todo.extend(before[state])
    return alive


def within(inner: Automaton, outer: Automaton) -> bool:
    """Whether every text of ``inner`` is one of ``outer``."""
    todo, seen = [(inner.start, outer.start)], set()
    while todo:
        pair = todo.pop()
        if pair in seen:
            continue
        seen.add(pair)
        mine, other = pair
        if inner.final[mine] and not outer.final[other]:
            return False
        moves = np.unique(np.stack((inner.table[mine], outer.table[other]), 1), axis=0)
        todo.extend((int(a), int(b)) for a, b in moves if a != DEAD)
    return True


def unanchored(regex: str) -> str:
    """The expression without ``^`` at its beginning and ``$`` at its end: a whole text is matched anyway."""
    body = regex.removeprefix("^")
    slashes = len(body) - 1 - len(body[:-1].rstrip("\\"))
    return body[:-1] if body.endswith("$") and slashes % 2 == 0 else body


def _short(regex: str) -> str:
    return repr(regex) if len(regex) <= 60 else f"{regex[:57]!r}…"


def _reason(message: str) -> str:
    if "incompatible" in message or "universal start" in message:
        return "no text matches it (a look-around, \\b, or ^ and $ inside it are not served)"
    return message.replace("\n", " ").strip()
