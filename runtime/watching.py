"""An observer that also fills the trace and the metrics.

Knows: which event becomes which number or span. Does not know: files, ports.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from draftline.compiler.plan import Plan

from .metrics import Metrics
from .observe import Observer
from .request import Live, Output
from .rows import rows_of
from .trace import StepInfo, Trace


class Watching(Observer):
    """``trace`` and ``metrics`` may each be None."""

    def __init__(self, group: int, trace: Trace | None, metrics: Metrics | None) -> None:
        super().__init__(group)
        self._trace, self._metrics, self._label = trace, metrics, str(group)
        self._named = False
        self.traces = trace is not None

    def admitted(self, live: Live) -> None:
        super().admitted(live)
        if self._metrics is not None:
            self._metrics.queue_wait.labels(self._label).observe(live.began - live.queued)
            self._metrics.prompt_tokens.labels(self._label).inc(len(live.request.prompt))

    def filled(self, runtime: Any, plan: Plan, began: int, rows: Sequence[tuple[Live, int]]) -> None:
        super().filled(runtime, plan, began, rows)
        again = sum(p >= len(live.request.prompt) - 1 for live, p in rows)
        if self._metrics is not None and again:
            self._metrics.replayed.labels(self._label).inc(again)
        slots = {live.index: (live.seat, 0, 0) for live, _ in rows}
        self._spans(runtime, plan, began, "replay" if again else "prefill", slots)

    def stepped(self, runtime: Any, plan: Plan, began: int, batch: Sequence[Live]) -> None:
        super().stepped(runtime, plan, began, batch)
        requests = {live.index: (live.seat, live.drafts, live.accepted) for live in batch}
        self._spans(runtime, plan, began, f"step K={plan.num_speculative_tokens}", requests)
        if self._metrics is None:
            return
        m, label, rows = self._metrics, self._label, rows_of(plan, batch)
        m.watch(label, runtime)
        m.steps.labels(label, str(plan.num_speculative_tokens)).inc()
        m.rows.labels(label).inc(rows.real)
        m.pad_rows.labels(label).inc(rows.pad)
        m.captures.labels(label).set(runtime.captures)
        for live in batch:
            for family, count in ((m.drafted, live.drafts), (m.accepted, live.accepted)):
                for position in range(1, count + 1):
                    family.labels(label, str(position)).inc()

    def finished(self, output: Output, live: Live) -> None:
        super().finished(output, live)
        if self._metrics is not None:
            self._metrics.tokens.labels(self._label).inc(len(output.token_ids))
            self._metrics.requests.labels(self._label, output.finish_reason).inc()
        if self._trace is not None and live.began_ns:
            args = {"tokens": len(output.token_ids), "finish_reason": output.finish_reason}
            self._trace.request(self.group, output.index, live.began_ns, time.monotonic_ns(), args)

    def failed(self, error: Exception) -> None:
        super().failed(error)
        if self._trace is not None:
            self._trace.instant(self.group, time.monotonic_ns(), type(error).__name__, {"message": str(error)[:500]})

    def _spans(
        self, runtime: Any, plan: Plan, began: int, name: str, requests: dict[int, tuple[int, int, int]]
    ) -> None:
        if self._trace is None:
            return
        if not self._named:
            self._named = True
            for worker, (device, _) in enumerate(runtime.tracks()):
                self._trace.name(self.group, device, worker)
        info = StepInfo(runtime.step, plan.num_speculative_tokens, requests)
        self._trace.driver(self.group, began, time.monotonic_ns(), name, info)
        plans = [bound.plan for bound in runtime.bound]
        for worker, (device, spans) in enumerate(runtime.tracks()):
            self._trace.spans(self.group, worker, device, plans, spans, info)
