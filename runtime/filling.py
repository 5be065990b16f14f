"""Filling caches: the calls that bring a request's caches up to its tail.

Knows: prefill, replay, what drafters missed, shared prefixes. Does not know: decode steps, who is admitted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from .catch_up import CatchUp
from .fill import fill_calls, missed_calls
from .metadata import write_fill
from .observe import Observer
from .request import Live
from .running import Bound, Flow, Outputs, Runtime, call
from .scheduler import Scheduler
from .sharing import Sharing


@dataclass(frozen=True)
class Filling:
    """``prefill`` is a call of P rows, ``replay`` the same of T rows; why there are two, says ``fill.py``."""

    runtime: Runtime
    prefill: Bound
    replay: Bound
    scheduler: Scheduler
    catch_up: CatchUp
    observer: Observer

    def fill(self, batch: Sequence[Live], budget: int) -> Flow[None]:
        """Bring the caches of those who need it towards the tail, with calls of some ``budget`` rows altogether: a new
        prompt, or all that a lost worker or a preemption has cost."""
        todo, sizes = [live for live in batch if not live.cached], self.scheduler.sizes
        began = time.perf_counter()
        for replay, rows in fill_calls(todo, sizes.prefill_tile, sizes.tile):
            if budget <= 0:
                break
            budget -= len(rows)
            yield from self._run(self.replay if replay else self.prefill, rows, prompts=not replay)
        for live in todo:
            live.prefill_seconds += time.perf_counter() - began
            if live.filled >= len(live.tokens) - 1:
                self.catch_up.filled(live)
                live.cached = True

    def fill_missed(self, drafting: Sequence[Live]) -> Flow[None]:
        """Give the drafter what it missed in steps without drafts, for those who will draft now."""
        todo = [live for live in drafting if self.catch_up.behind(live)]
        own, sizes = self.catch_up.own_model, self.scheduler.sizes
        for rows in missed_calls(todo, sizes.prefill_tile if own else sizes.tile):
            yield from self._run(self.prefill if own else self.replay, rows, target=not own)
        for live in todo:
            self.catch_up.filled(live)

    def _run(
        self, bound: Bound, rows: Sequence[tuple[Live, int]], target: bool = True, prompts: bool = False
    ) -> Flow[Outputs]:
        """One call of rows (request, position); without ``target``, they are the draft model's alone. ``prompts``: of
        prompts, in turn, which others may share."""
        began = time.monotonic_ns()
        write_fill(bound.inputs, rows, self.scheduler.table, target)
        sharing = Sharing(self.scheduler.prefix, bound.inputs, rows if prompts else ())
        try:
            out = yield from call(self.runtime.start(bound))
        except BaseException:
            sharing.over(done=False)
            raise
        for live, position in rows if target else ():
            live.filled = max(live.filled, position + 1)
        sharing.over(done=True)
        self.observer.filled(self.runtime, bound.plan, began, rows)
        return out
