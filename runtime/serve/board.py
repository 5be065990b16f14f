"""What the engines do, as the status page and ``/metrics`` want to know it.

Knows: steps' drafts and tokens. Does not know: HTTP, HTML. Written by the engines' thread, read by the server's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from draftline.compiler.plan import Plan

from ..observe import Observer
from ..request import Live
from .metrics import PREFIX

KEPT = 4096
"""Steps that are remembered for the page."""


@dataclass(frozen=True)
class Step:
    """``at`` in seconds of time.monotonic; ``k``: the plan's depth; ``tokens`` committed for ``requests``."""

    at: float
    k: int
    requests: int
    tokens: int


class Board:
    """Counts over the server's life, and the last steps."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self.steps: deque[Step] = deque(maxlen=KEPT)
        self.plan: Plan | None = None
        self.proposed: list[int] = []
        self.accepted: list[int] = []
        self.tokens = self._turns = 0

        def counter(name: str, says: str, *labels: str) -> Counter:
            names = ("model_name", "engine", *labels)
            return Counter(f"{PREFIX}spec_decode_{name}", says, names, registry=registry)

        self._labels = (model, "0")
        self._num_drafts = counter("num_drafts", "Times that drafts were proposed for a request").labels(*self._labels)
        self._num_draft_tokens = counter("num_draft_tokens", "Drafts proposed").labels(*self._labels)
        self._num_accepted = counter("num_accepted_tokens", "Drafts accepted").labels(*self._labels)
        self._per_position = counter("num_accepted_tokens_per_pos", "Drafts accepted by position, from 0", "position")

    def stepped(self, plan: Plan, batch: Sequence[Live]) -> None:
        """A decode step is done."""
        self.plan = plan
        tokens = sum(live.accepted + 1 for live in batch)
        self.tokens += tokens
        self._turns += len(batch)
        self.steps.append(Step(time.monotonic(), plan.num_speculative_tokens, len(batch), tokens))
        for live in batch:
            if not live.drafts:
                continue
            self._num_drafts.inc()
            self._num_draft_tokens.inc(live.drafts)
            self._num_accepted.inc(live.accepted)
            for counts in (self.proposed, self.accepted):
                counts.extend([0] * (live.drafts - len(counts)))
            for i in range(live.drafts):
                self.proposed[i] += 1
            for i in range(live.accepted):
                self.accepted[i] += 1
                self._per_position.labels(*self._labels, str(i)).inc()

    def length(self) -> float:
        """Tokens per request and step; 0.0 before the first."""
        return self.tokens / self._turns if self._turns else 0.0

    def rate(self, seconds: float) -> float:
        """Tokens per second over the last ``seconds``."""
        since = time.monotonic() - seconds
        return sum(step.tokens for step in list(self.steps) if step.at >= since) / seconds

    def acceptance(self) -> list[float]:
        """Per position, of the drafts that were proposed there the share that was accepted."""
        return [a / p if p else 0.0 for p, a in zip(self.proposed, self.accepted, strict=True)]


class BoardObserver(Observer):
    """A replica's events onto the board; the log is another observer's."""

    def __init__(self, group: int, board: Board) -> None:
        super().__init__(group)
        self._board = board

    def admitted(self, live: Live) -> None:
        pass

    def stepped(self, runtime: Any, plan: Plan, began: int, batch: Sequence[Live]) -> None:
        self._board.stepped(plan, batch)

    def finished(self, output: Any, live: Live) -> None:
        pass

    def failed(self, error: Exception) -> None:
        pass
