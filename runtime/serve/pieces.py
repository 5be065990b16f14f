"""The tokens of one choice as pieces of text, with stop strings cut off.

Knows: incremental text, stop strings across pieces. Does not know: HTTP, engines.

Text that may be the beginning of a stop string is held back until it is decided, so nothing that was sent is ever taken
back. The pieces of a choice joined are its whole text, so streamed and whole answers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftline.stages.sampling.params import TokenLogprobs

from ..request import Output
from ..stopping import first
from ..text import Text
from .jobs import Job

FINISH = {"stop": "stop", "length": "length", "context": "length", "abort": "abort"}
"""The engine's finish reasons as OpenAI names them."""


@dataclass(frozen=True)
class Piece:
    """What a step added to a choice. ``tokens``: how many so far. ``finish``: why it ended, with ``stop``, the string
    or token that ended it, as in vLLM."""

    index: int
    text: str
    tokens: int
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: str | None = None
    stop: int | str | None = None


class Joiner:
    """Feed a job's tokens, get pieces, the last with ``finish``.

    The engine looks for stop strings too, and ends the request at the token that completes one; but it does not see the
    text of special tokens, which a client may have asked for."""

    def __init__(self, job: Job, text: Text) -> None:
        self._job, self._stops = job, job.request.stop
        self._stream = text.stream(skip_special_tokens=job.skip)
        self._held = ""
        self.tokens = 0

    def feed(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> Piece:
        """The piece of these tokens; those behind a stop string do not count."""
        out = ""
        for n, token in enumerate(ids, 1):
            self.tokens += 1
            known = len(self._held)
            self._held += self._stream.feed((token,))
            counts = self._stops and self.tokens > self._job.request.sampling.min_tokens
            if counts and (found := first(self._held, self._stops, known)):
                at, stop = found
                text = out + self._held[: at + len(stop) * self._job.joined]
                return Piece(self._job.index, text, self.tokens, tuple(logprobs[:n]), "stop", stop)
            out += self._certain()
        return Piece(self._job.index, out, self.tokens, tuple(logprobs))

    def finish(self, output: Output) -> Piece:
        """The last piece: what is still held, and why the choice ended."""
        rest = self._held + self._stream.flush()
        return Piece(self._job.index, rest, self.tokens, (), FINISH[output.finish_reason], output.stop_reason)

    def _certain(self) -> str:
        """Cut off and return the held text that cannot be the beginning of a stop string."""
        keep = held_back(self._held, self._stops)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out


def held_back(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of ``text`` that may become a stop string: the longest end that one of them begins with."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for n in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-n:]) for stop in stops):
            return n
    return 0
