"""Executing one device's part of a plan: its instructions, in order, on tensors that are resolved once.

Knows: READ, WAIT, RUN, POLL, SIGNAL, WRITE and conditions. Does not know: requests, processes, how one device tells
another. It decides nothing that the plan has not decided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from draftline.compiler.capture import Capture, Replay
from draftline.compiler.plan import (
    Condition,
    Copy,
    Instruction,
    Plan,
    RowsAbove,
    Segment,
    StageRun,
    WorkerProgram,
)
from draftline.graph.errors import StageError
from draftline.stages.core import StageContext
from draftline.stages.models.core import Loaded

from .arena import Arena, rehearsal_arena

Lookup = Callable[[str], type[Any]]
Captures = Callable[[str], Capture]
"""Backend name → the backend, one per runtime."""


@dataclass(frozen=True)
class ResolvedRun:
    """One stage call with everything resolved: nothing is looked up while stepping."""

    stage: Any
    run: StageRun
    inputs: Mapping[str, Tensor | None]
    outputs: Mapping[str, Tensor]
    per_wave: bool


class Links(Protocol):
    """How a program hears of other devices, and what it leaves behind for who watches."""

    def arrived(self, edge: int) -> bool:
        """Whether the edge's signal of this step is here; it does not wait."""

    def signal(self, edge: int) -> None:
        """Tell the edge's target."""

    def began(self, index: int) -> None:
        """Instruction ``index`` of the program begins."""

    def ended(self, index: int, ran: bool) -> None:
        """RUN ``index`` is over; ``ran`` is False if its condition was false."""


class Program:
    """One worker's program of a plan, with its stages built and its ports resolved to tensors."""

    def __init__(
        self,
        plan: Plan,
        worker: WorkerProgram,
        arena: Arena,
        stages: Mapping[str, Any],
        captures: Captures,
        read: Callable[[], None],
    ) -> None:
        """``stages``: node → stage instance. ``read`` brings the driver's inputs into the arena, where they are not
        there already."""
        self.plan, self.device, self.instructions = plan, worker.device, worker.instructions
        self.polled = {i.edge for i in worker.instructions if i.op == "POLL"}
        self.arena, self._read = arena, read
        self.segments = {
            segment.name: tuple(_resolve(arena, stages[run.node], run, segment.per_wave) for run in segment.runs)
            for segment in plan.segments
            if segment.device == worker.device
        }
        self._replays = {
            segment.name: captures(segment.backend).capture(
                _replay(plan, self.segments[segment.name]), functools.partial(_rehearse, plan, segment, stages)
            )
            for segment in plan.segments
            if segment.name in self.segments
        }

    def run(self, links: Links) -> Iterator[int]:
        """Execute the program; yields the edge whenever it cannot go on before that edge's signal is here.

        Raises StageError, naming the stage, if one raises.
        """
        for index, i in enumerate(self.instructions):
            links.began(index)
            if i.op == "RUN":
                ran = i.when is None or self.holds(i.when)
                if ran:
                    self._replays[i.segment](i.wave)
                links.ended(index, ran)
            else:
                yield from self._other(i, links)

    def _other(self, i: Instruction, links: Links) -> Iterator[int]:
        if i.op == "WAIT":
            while not links.arrived(i.edge):
                yield i.edge
        elif i.op == "SIGNAL":
            links.signal(i.edge)
        elif i.op == "POLL":
            self._copy(i.copies if links.arrived(i.edge) else i.otherwise)
        elif i.op == "READ":
            self._read()
        else:
            self._copy(i.copies)

    def active_runs(self) -> Iterator[tuple[ResolvedRun, int]]:
        """This step one stage call at a time, for who wants to look between them; the caller makes the calls. Only
        for a program that hears of no other device."""
        for i in self.instructions:
            if i.op == "RUN" and (i.when is None or self.holds(i.when)):
                for run in self.segments[i.segment]:
                    yield run, i.wave
            elif i.op != "RUN":
                for edge in self._other(i, _Alone()):
                    raise AssertionError(f"waits for edge {edge}")

    def holds(self, condition: Condition) -> bool:
        """Whether the buffer counts more than n now: true elements, or positions of rows that stand for somebody."""
        counted = self.arena.buffer(condition.buffer)
        return int((counted >= 0 if isinstance(condition, RowsAbove) else counted).sum()) > condition.n

    def _copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            target = self.arena.buffer(copy.target)
            if copy.source is None:
                target.fill_(True)
            else:
                target.copy_(self.arena.view(copy.source))


class _Alone:
    def arrived(self, edge: int) -> bool:
        return False

    def signal(self, edge: int) -> None:
        raise AssertionError(f"signals edge {edge}")

    def began(self, index: int) -> None:
        pass

    def ended(self, index: int, ran: bool) -> None:
        pass


def build_stages(
    plan: Plan, devices: Sequence[str], model: Loaded, lookup: Lookup, captures: Captures
) -> dict[str, Any]:
    """One instance per node of the plan that runs on one of ``devices``, with the models as its segment's backend has
    them."""
    stages = {}
    for segment in plan.segments:
        if segment.device in devices:
            own = captures(segment.backend).models(model)
            context = StageContext(
                model.device,
                model.dtype,
                dict(plan.dims),
                plan.layout.chosen,
                own.target,
                own.drafter,
                own.draft_model,
                model.grammars,
            )
            for run in {run.node: run for run in segment.runs}.values():
                stages[run.node] = lookup(run.stage)(context, **dict(run.options))
    return stages


def _rehearse(plan: Plan, segment: Segment, stages: Mapping[str, Any]) -> None:
    """Run the segment once for nobody: all rows are pad rows, and the memory is thrown away."""
    arena = rehearsal_arena(plan)
    _replay(plan, [_resolve(arena, stages[run.node], run, segment.per_wave) for run in segment.runs])(0)


def _resolve(arena: Arena, stage: Any, run: StageRun, per_wave: bool) -> ResolvedRun:
    inputs = {port: None if view is None else arena.view(view) for port, view in run.inputs}
    outputs = {port: arena.view(view) for port, view in run.outputs}
    return ResolvedRun(stage, run, inputs, outputs, per_wave)


def _replay(plan: Plan, runs: Sequence[ResolvedRun]) -> Replay:
    """A segment as one callable. Raises StageError in place of whatever a stage raises."""

    def run(wave: int) -> None:
        for each in runs:
            try:
                each.stage(each.run.call(wave), each.inputs, each.outputs)
            except Exception as error:
                raise StageError(
                    f"stage {each.run.op!r} ({each.run.stage}) of plan {plan.name!r}, K={plan.num_speculative_tokens},"
                    f" wave {wave}, raised {type(error).__name__}: {error}"
                ) from error

    return run
