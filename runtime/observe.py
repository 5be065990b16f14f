"""What happens to requests and steps, told to who wants to know: the log, the trace, the metrics.

Knows: the events. Does not know: files, ports. An engine always has an observer; this one only writes the log.
Acceptance is logged when a request ends and every ``PERIOD`` seconds, never per step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from draftline.compiler.plan import Plan

from .request import Counts, Live, Output

PERIOD = 10.0
log = logging.getLogger("draftline")


class Observer:
    """Called by the engine. ``group`` is the number of the replica."""

    traces = False
    """Whether it must see a step's spans before the next one begins."""

    def __init__(self, group: int = 0) -> None:
        self.group = group
        self._since, self._counts = time.monotonic(), Counts()

    def admitted(self, live: Live) -> None:
        """A request got its turn."""
        if not self._counts.steps:
            self._since = time.monotonic()  # nobody was served since the last line

    def filled(self, runtime: Any, plan: Plan, began: int, rows: Sequence[tuple[Live, int]]) -> None:
        """A prefill or replay call is done; ``began`` in ns of CLOCK_MONOTONIC."""

    def stepped(self, runtime: Any, plan: Plan, began: int, batch: Sequence[Live]) -> None:
        """A decode step is done."""
        for live in batch:
            self._counts.add(live.drafts, live.accepted, live.accepted + 1)
        now = time.monotonic()
        if now - self._since >= PERIOD:
            log.info("%s", _summary(self._counts, now - self._since))
            self._since, self._counts = now, Counts()

    def finished(self, output: Output, live: Live) -> None:
        """A request ended."""
        log.info(
            "request %d: %s after %d tokens in %d steps; acceptance per position %s",
            output.index,
            output.finish_reason,
            len(output.token_ids),
            output.counts.steps,
            _shares(output.counts),
        )

    def failed(self, error: Exception) -> None:
        """A call failed; what can be rebuilt will be."""
        log.warning("%s", error)


class Several(Observer):
    """Tells each of several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        super().__init__(observers[0].group)
        self._observers = tuple(observers)

    def admitted(self, live: Live) -> None:
        for one in self._observers:
            one.admitted(live)

    def filled(self, runtime: Any, plan: Plan, began: int, rows: Sequence[tuple[Live, int]]) -> None:
        for one in self._observers:
            one.filled(runtime, plan, began, rows)

    def stepped(self, runtime: Any, plan: Plan, began: int, batch: Sequence[Live]) -> None:
        for one in self._observers:
            one.stepped(runtime, plan, began, batch)

    def finished(self, output: Output, live: Live) -> None:
        for one in self._observers:
            one.finished(output, live)

    def failed(self, error: Exception) -> None:
        for one in self._observers:
            one.failed(error)


def _summary(counts: Counts, seconds: float) -> str:
    rate, steps = counts.tokens / seconds, counts.steps
    return (
        f"{rate:.1f} tokens/s; {counts.mean_acceptance_length:.2f} tokens per request and step over {steps};"
        f" acceptance per position {_shares(counts)}"
    )


def _shares(counts: Counts) -> str:
    return "[" + ", ".join(f"{share:.2f}" for share in counts.per_position(len(counts.proposed))) + "]"
