"""Stop strings: which token completes one, and what text is left.

Knows: tokens one at a time, text as it becomes certain. Does not know: requests, steps, other ends (``ends.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Stream(Protocol):
    """An incremental decoder, such as ``text.TextStream``."""

    def feed(self, ids: Sequence[int]) -> str: ...


class Decoder(Protocol):
    """A tokenizer, such as ``text.Text``."""

    def decode(self, ids: Sequence[int]) -> str: ...


class StopStrings:
    """Feed a request's new tokens; the token that completes a stop string is told at once."""

    def __init__(self, stream: Stream, stop: Sequence[str], min_tokens: int = 0) -> None:
        """A string that is complete before there are more than ``min_tokens`` tokens does not count."""
        self._stream, self._stop, self._left = stream, tuple(stop), min_tokens
        self._kept = max(map(len, stop)) - 1
        self._text = ""

    def feed(self, token: int) -> str | None:
        """The stop string that the token completes: of several the one that begins first, then the first given."""
        new = self._stream.feed([token])
        self._left -= 1
        found = None if self._left >= 0 else first(self._text + new, self._stop, len(self._text))
        self._text = (self._text + new)[-self._kept :] if self._kept else ""
        return None if found is None else found[1]


def first(text: str, stop: Sequence[str], known: int = 0) -> tuple[int, str] | None:
    """Where the first stop string begins that ends behind ``known`` characters, and which it is."""
    found = [(at, i) for i, s in enumerate(stop) if (at := text.find(s, max(0, known - len(s) + 1))) >= 0]
    if not found:
        return None
    at, i = min(found)
    return at, stop[i]


def final_text(decoder: Decoder, token_ids: Sequence[int], stop_reason: int | str | None, include: bool = False) -> str:
    """The text of a finished request: what comes before the stop string that ended it; ``include``: with that string,
    and never more. Other ends cut no text."""
    text = decoder.decode(token_ids)
    if not isinstance(stop_reason, str):
        return text
    # It is the last token that completed it; half a character before that was not text yet.
    known = len(decoder.decode(token_ids[:-1]).rstrip("\ufffd"))
    found = first(text, [stop_reason], known)
    if found is None:
        return text
    return text[: found[0] + len(stop_reason) if include else found[0]]
