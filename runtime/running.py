"""What the engine needs of a runtime, and how a flow of calls is driven.

Knows: a call that is under way, counters. Does not know: where the call runs.

The engine's work is written as generators (flows) that yield each call they wait for. One engine drives its flow to
the end; several engines (replicas) take turns while their calls are under way.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import Tensor

from draftline.compiler.plan import Plan
from draftline.graph.errors import DraftlineError

T = TypeVar("T")
Outputs = Mapping[str, Tensor]
"""Graph output → its tensor, valid until the next call starts."""


@dataclass
class Totals:
    """Counters over a runtime's life. ``hops``: messages of all steps. ``late``: messages of an old epoch or step,
    dropped. ``refused``: frames that are no message, dropped. ``hangups``: connections of strangers that ended, most of
    them cut off for a frame that is too long. ``cancelled``: drafts that a gate stopped."""

    steps: int = 0
    waves: int = 0
    hops: int = 0
    late: int = 0
    refused: int = 0
    restarts: int = 0
    cancelled: int = 0
    hangups: int = 0


class Pending(Protocol):
    """A call under way."""

    def ready(self) -> bool:
        """Whether it is over; does not wait."""

    def wait(self) -> None:
        """Wait for it, no longer than its deadlines allow."""

    def sockets(self) -> Sequence[Any]:
        """What becomes readable when something happened to it: for who waits for several."""

    def result(self) -> Outputs:
        """Its outputs. Raises StageError and WorkerError."""


Flow = Generator[Pending, None, T]


class Bound(Protocol):
    """A plan that a runtime can run."""

    plan: Plan

    @property
    def inputs(self) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
        """The driver fills these before each call; where the runtime overlaps, also while one runs."""

    @property
    def lines(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of a call that follows a step, how to complete its inputs (``ahead.py``)."""


class Runtime(Protocol):
    """Runs plans. ``bind`` once, then calls, one at a time. ``step``: number of the last call that was begun, from 1,
    in errors and in the trace."""

    step: int
    overlaps: bool
    """Whether there is anything to gain by preparing a call while another one runs."""

    @property
    def totals(self) -> Totals: ...

    @property
    def captures(self) -> int: ...

    def bind(self, plans: Sequence[Plan]) -> Sequence[Bound]: ...

    def start(self, bound: Any, follows: bool = False) -> Pending:
        """Begin one call on what the driver has put into ``bound.inputs``. It ``follows``: the inputs are completed by
        what the call before has committed."""

    def restart(self) -> Pending:
        """Begin anew after a WorkerError, with empty caches. Raises WorkerLostError if that happened too often."""

    def abandon(self) -> None:
        """Nobody waits for the last call any more: it was interrupted."""

    def retire(self) -> None:
        """Begin to end, and do not wait for it: ``close`` does."""

    def close(self) -> None:
        """Leave nothing behind. May be called again."""


@dataclass(frozen=True)
class Over:
    """A call that is over."""

    value: Outputs | DraftlineError

    def ready(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def sockets(self) -> Sequence[Any]:
        return ()

    def result(self) -> Outputs:
        if isinstance(self.value, DraftlineError):
            raise self.value
        return self.value


def call(pending: Pending) -> Flow[Outputs]:
    """Wait for a call inside a flow."""
    if not pending.ready():
        yield pending
    return pending.result()


def drive(flow: Flow[T]) -> T:
    """Run a flow to its end, waiting for each call in turn."""
    try:
        while True:
            next(flow).wait()
    except StopIteration as stop:
        return stop.value
