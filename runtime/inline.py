"""The inline runtime: a plan's instructions, executed in this process.

Knows: programs, one or several, and their turns. Does not know: requests, what stages compute. It is the oracle for
every other runtime. A plan that is placed on several devices runs here too: its programs take turns, one goes on
until it must wait for another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from draftline.compiler.capture import Capture, backend
from draftline.compiler.plan import Plan
from draftline.graph.errors import DraftlineError, PlanError, WorkerLostError
from draftline.stages.models.core import Loaded

from . import ahead
from .arena import Arena, ArenaLayout, arena_layout, metadata_arrays
from .execute import Captures, Lookup, Program, ResolvedRun, build_stages
from .running import Over, Pending, Totals
from .trace import Spans


class BoundPlan:
    """A plan on an arena of this process."""

    def __init__(
        self,
        plan: Plan,
        model: Loaded,
        lookup: Lookup,
        memory: Tensor,
        layout: ArenaLayout,
        captures: Captures,
        number: int = 0,
    ) -> None:
        self.plan, self.number = plan, number
        self.arena = Arena(plan, memory, layout)
        # The driver fills these views; the bytes go to the arena in one copy per step.
        self._bank = ahead.bank(plan, torch.zeros(ahead.bank_bytes([plan]), dtype=torch.uint8))
        self.inputs, self.lines = self._bank.inputs, self._bank.lines
        self._in_arena = metadata_arrays(plan, self.arena.metadata)
        self.committed = ahead.committed(plan, self.arena)
        self.before: ahead.Committed | None = None
        self.outputs = {name: self.arena.view(view) for name, view in plan.outputs}
        stages = build_stages(plan, [w.device for w in plan.workers], model, lookup, captures)
        self.programs = [
            Program(plan, worker, self.arena, stages, captures, self._read if not n else _nothing)
            for n, worker in enumerate(sorted(plan.workers, key=lambda w: w.device != plan.entry))
        ]

    def _read(self) -> None:
        ahead.read(self._bank, self.arena, self._in_arena, self.before)

    def active_runs(self) -> Iterator[tuple[ResolvedRun, int]]:
        """``Program.active_runs`` of the only program. Raises PlanError for a plan on several devices."""
        if len(self.programs) != 1:
            raise PlanError(f"plan {self.plan.name!r} is on {len(self.programs)} devices: its runs have no one order")
        return self.programs[0].active_runs()


def _nothing() -> None:
    pass


class _Turns:
    """Links of programs that take turns in one process."""

    def __init__(
        self, step: int, bound: BoundPlan, program: Program, signals: set[int], totals: Totals, spans: Spans | None
    ):
        self._step, self._bound, self._program, self._signals = step, bound, program, signals
        self._totals, self._spans, self._since = totals, spans, 0

    def arrived(self, edge: int) -> bool:
        return edge in self._signals

    def signal(self, edge: int) -> None:
        self._signals.add(edge)

    def began(self, index: int) -> None:
        if self._spans is not None:
            self._since = time.monotonic_ns()

    def ended(self, index: int, ran: bool) -> None:
        segment = self._program.instructions[index].segment
        wave = self._program.segments[segment][0].per_wave
        self._totals.waves += ran and wave
        self._totals.cancelled += not ran and not wave
        if self._spans is not None:
            self._spans.add(self._since, time.monotonic_ns(), self._step, self._bound.number, index, ran)


class InlineRuntime:
    """Plans of one deployment over one arena."""

    def __init__(self, model: Loaded, lookup: Lookup, trace: bool = False) -> None:
        self.model, self._lookup = model, lookup
        self._backends: dict[str, Capture] = {}
        self._trace = trace
        self._spans: dict[str, Spans] = {}
        self.bound: list[BoundPlan] = []
        self.totals = Totals()
        self.step, self.overlaps = 0, False
        self._last: BoundPlan | None = None

    @property
    def captures(self) -> int:
        """Segments captured so far; after ``bind`` this must stay what it is."""
        return sum(b.captures for b in self._backends.values())

    def _captures(self, name: str) -> Capture:
        if name not in self._backends:
            self._backends[name] = backend(name)
        return self._backends[name]

    def bind(self, plans: Sequence[Plan]) -> list[BoundPlan]:
        """Bind plans that never run at the same time: they share one arena. This is the warm-up: whatever a
        capture backend captures is captured here, and nothing later."""
        layout = arena_layout(plans)
        memory = torch.zeros(layout.nbytes, dtype=torch.uint8, device=self.model.device)
        if self._trace:
            self._spans = {w.device: Spans.private(True) for p in plans for w in p.workers}
        self.bound = [
            BoundPlan(p, self.model, self._lookup, memory, layout, self._captures, n) for n, p in enumerate(plans)
        ]
        for one in self._backends.values():
            one.seal()
        return self.bound

    def tracks(self) -> list[tuple[str, Spans]]:
        """(device, spans) of every worker program, in the order of the plans' programs."""
        return list(self._spans.items())

    def start(self, bound: BoundPlan, follows: bool = False) -> Pending:
        """Run one call; what is given back is over already."""
        bound.before = self._last.committed if follows and self._last is not None else None
        self._last = bound
        try:
            self._run(bound)
        except DraftlineError as error:
            return Over(error)
        return Over(bound.outputs)

    def restart(self) -> Pending:
        """Nothing that runs here can die alone. Raises WorkerLostError."""
        raise WorkerLostError("the inline runtime has no worker that could be started anew")

    def abandon(self) -> None:
        """A call that was interrupted is over."""

    def retire(self) -> None:
        """There is nobody to ask."""

    def close(self) -> None:
        """Nothing is left behind."""

    def _run(self, bound: BoundPlan) -> None:
        self.step += 1
        signals: set[int] = set()
        with torch.inference_mode():
            turns = [
                program.run(_Turns(self.step, bound, program, signals, self.totals, self._spans.get(program.device)))
                for program in bound.programs
            ]
            while turns:
                turns = [turn for turn in turns if next(turn, None) is not None]
        self.totals.steps += 1
