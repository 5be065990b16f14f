"""The inline runtime: a plan's instructions, executed in this process, in order.

Knows: READ, RUN, WRITE and conditions. Does not know: requests, what stages compute. It decides nothing that
the plan has not decided; it is the oracle for every other runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftline.compiler.capture import Capture, Replay, backend
from draftline.compiler.plan import BufferSpec, Instruction, LiveAbove, Plan, StageRun
from draftline.graph.errors import PlanError
from draftline.stages.core import StageContext
from draftline.stages.models.core import Loaded

from .arena import Arena, StateStore, buffer_tensor

Lookup = Callable[[str], type[Any]]
Captures = Callable[[str], Capture]
"""Backend name → the backend, one per runtime."""


@dataclass
class Totals:
    """Counters over a runtime's life."""

    steps: int = 0
    waves: int = 0


@dataclass(frozen=True)
class ResolvedRun:
    """One stage call with everything resolved: nothing is looked up while stepping."""

    stage: Any
    run: StageRun
    inputs: Mapping[str, Tensor | None]
    outputs: Mapping[str, Tensor]
    per_wave: bool


class BoundPlan:
    """A plan with its stages built and its ports resolved to tensors."""

    def __init__(
        self, plan: Plan, model: Loaded, lookup: Lookup, block: Tensor, states: StateStore, captures: Captures
    ) -> None:
        self.plan = plan
        self.arena = Arena(plan, block, states)
        # The driver fills these views; the bytes go to the arena in one copy per step.
        start, size = plan.metadata
        self._host = torch.zeros(size, dtype=torch.uint8)
        self.inputs: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = {}
        for spec in plan.buffers:
            if spec.kind == "input" and start <= spec.offset < start + size:
                local = buffer_tensor(self._host, _shifted(spec, start))
                self.inputs[spec.name] = local.numpy()
        self.outputs = {name: self.arena.view(view) for name, view in plan.outputs}
        self._segments: dict[str, tuple[ResolvedRun, ...]] = {}
        self._program = self._single_program()
        context = StageContext(
            model.device, model.dtype, dict(plan.dims), plan.layout.chosen, model.target, model.drafter
        )
        stages: dict[str, Any] = {}
        for segment in plan.segments:
            runs: list[ResolvedRun] = []
            for run in segment.runs:
                if run.node not in stages:
                    stages[run.node] = lookup(run.stage)(context, **dict(run.options))
                runs.append(self._resolve(stages[run.node], run, segment.per_wave))
            self._segments[segment.name] = tuple(runs)
        self._replays = {
            segment.name: captures(segment.backend).capture(_replay(self._segments[segment.name]))
            for segment in plan.segments
        }

    def _single_program(self) -> tuple[Instruction, ...]:
        if len(self.plan.workers) != 1:
            devices = ", ".join(w.device for w in self.plan.workers)
            raise PlanError(
                f"plan {self.plan.name!r} is placed on {len(self.plan.workers)} devices ({devices});"
                " the inline runtime runs one: remove placement, or use a multi-process runtime"
            )
        return self.plan.workers[0].instructions

    def _resolve(self, stage: Any, run: StageRun, per_wave: bool) -> ResolvedRun:
        inputs = {port: None if view is None else self.arena.view(view) for port, view in run.inputs}
        outputs = {port: self.arena.view(view) for port, view in run.outputs}
        return ResolvedRun(stage, run, inputs, outputs, per_wave)

    def _active(self) -> Iterator[tuple[str, int]]:
        """(segment, wave) of this step, in order. A condition is evaluated when it is reached, so the caller runs
        each before it asks for the next; READ and WRITE happen on the way."""
        for instruction in self._program:
            if instruction.op == "READ":
                self.arena.metadata.copy_(self._host)
            elif instruction.op == "WRITE":
                for copy in instruction.copies:
                    self.arena.buffer(copy.target).copy_(self.arena.view(copy.source))
            elif instruction.when is None or self._holds(instruction.when):
                yield instruction.segment, instruction.wave

    def active_runs(self) -> Iterator[tuple[ResolvedRun, int]]:
        """This step one stage call at a time, for who wants to look between them; the caller makes the calls."""
        for segment, wave in self._active():
            for run in self._segments[segment]:
                yield run, wave

    def step(self, totals: Totals) -> None:
        """Run the program once on what the driver has put into ``inputs``."""
        for segment, wave in self._active():
            self._replays[segment](wave)
            totals.waves += self._segments[segment][0].per_wave
        totals.steps += 1

    def _holds(self, condition: LiveAbove) -> bool:
        return int(self.arena.buffer(condition.buffer).sum()) > condition.n


def _replay(runs: Sequence[ResolvedRun]) -> Replay:
    """A segment as one callable."""

    def run(wave: int) -> None:
        for each in runs:
            each.stage(each.run.call(wave), each.inputs, each.outputs)

    return run


def _shifted(spec: BufferSpec, start: int) -> BufferSpec:
    return replace(spec, offset=spec.offset - start)


class InlineRuntime:
    """Plans of one deployment over one arena and one set of states."""

    def __init__(self, model: Loaded, lookup: Lookup) -> None:
        self._model, self._lookup = model, lookup
        self._states = StateStore(model.device)
        self._backends: dict[str, Capture] = {}
        self.totals = Totals()

    @property
    def captures(self) -> int:
        """Segments captured so far; after ``bind`` this must stay what it is."""
        return sum(b.captures for b in self._backends.values())

    def _captures(self, name: str) -> Capture:
        return self._backends.setdefault(name, backend(name))

    def bind(self, plans: Sequence[Plan]) -> list[BoundPlan]:
        """Bind plans that never run at the same time: they share one block. This is the warm-up: whatever a
        capture backend captures is captured here, and nothing later."""
        size = max((p.arena_nbytes for p in plans), default=0)
        block = torch.zeros(size, dtype=torch.uint8, device=self._model.device)
        return [BoundPlan(p, self._model, self._lookup, block, self._states, self._captures) for p in plans]

    def run(self, bound: BoundPlan) -> Mapping[str, Tensor]:
        """One step; the outputs by name, valid until the next step."""
        with torch.inference_mode():
            bound.step(self.totals)
        return bound.outputs
