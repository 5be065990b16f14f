"""The inline runtime: a plan's instructions, executed in this process, in order.

Knows: READ, RUN, WRITE and conditions. Does not know: requests, what stages compute. It decides nothing that
the plan has not decided; it is the oracle for every other runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftline.compiler.plan import BufferSpec, Instruction, LiveAbove, Plan, StageRun
from draftline.graph.errors import PlanError
from draftline.stages.core import StageContext
from draftline.stages.models.core import Loaded

from .arena import Arena, StateStore, buffer_tensor

Lookup = Callable[[str], type[Any]]


@dataclass
class Totals:
    """Counters over a runtime's life. ``captures`` after warm-up must stay what it was."""

    steps: int = 0
    waves: int = 0
    captures: int = 0
    runs: int = 0


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

    def __init__(self, plan: Plan, model: Loaded, lookup: Lookup, block: Tensor, states: StateStore) -> None:
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

    def active_runs(self) -> Iterator[tuple[ResolvedRun, int]]:
        """The stage calls of this step with their waves, in order. A condition is evaluated when it is reached,
        so the caller makes each call before it asks for the next; READ and WRITE happen on the way."""
        for instruction in self._program:
            if instruction.op == "READ":
                self.arena.metadata.copy_(self._host)
            elif instruction.op == "WRITE":
                for copy in instruction.copies:
                    self.arena.buffer(copy.target).copy_(self.arena.view(copy.source))
            elif instruction.when is None or self._holds(instruction.when):
                for run in self._segments[instruction.segment]:
                    yield run, instruction.wave

    def step(self, totals: Totals) -> None:
        """Run the program once on what the driver has put into ``inputs``."""
        for resolved, wave in self.active_runs():
            resolved.stage(resolved.run.call(wave), resolved.inputs, resolved.outputs)
            totals.runs += 1
            totals.waves += resolved.per_wave
        totals.steps += 1

    def _holds(self, condition: LiveAbove) -> bool:
        return int(self.arena.buffer(condition.buffer).sum()) > condition.n


def _shifted(spec: BufferSpec, start: int) -> BufferSpec:
    return replace(spec, offset=spec.offset - start)


class InlineRuntime:
    """Plans of one deployment over one arena and one set of states."""

    def __init__(self, model: Loaded, lookup: Lookup) -> None:
        self._model, self._lookup = model, lookup
        self._states = StateStore(model.device)
        self.totals = Totals()

    def bind(self, plans: list[Plan]) -> list[BoundPlan]:
        """Bind plans that never run at the same time: they share one block. This is the warm-up: whatever a
        capture backend captures is captured here, and nothing later."""
        size = max((p.arena_nbytes for p in plans), default=0)
        block = torch.zeros(size, dtype=torch.uint8, device=self._model.device)
        bound = [BoundPlan(p, self._model, self._lookup, block, self._states) for p in plans]
        self.totals.captures += sum(len(p.segments) for p in plans)
        return bound

    def run(self, bound: BoundPlan) -> Mapping[str, Tensor]:
        """One step; the outputs by name, valid until the next step."""
        with torch.inference_mode():
            bound.step(self.totals)
        return bound.outputs
