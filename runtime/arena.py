"""The arena: one block of bytes in which every buffer of every plan of a deployment lies at a fixed offset.

Knows: offsets, views, states that several plans share. Does not know: stages, order, who else sees the bytes.

States come first, by name; then one block that all plans share, because only one of them runs at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from draftline.compiler.passes.buffers import aligned
from draftline.compiler.plan import BufferSpec, Plan, View
from draftline.graph.errors import PlanError


@dataclass(frozen=True)
class ArenaLayout:
    """Where the states are, and where the plans' common block begins; all in bytes."""

    states: tuple[BufferSpec, ...]
    block: int
    nbytes: int


def arena_layout(plans: Sequence[Plan]) -> ArenaLayout:
    """The layout of one arena in which all ``plans`` run in turn. A state is known by its name: what one plan leaves
    in it, the next finds. Raises PlanError if two plans disagree on a state's shape or dtype."""
    states: dict[str, BufferSpec] = {}
    end = 0
    for spec in sorted((s for p in plans for s in p.buffers if s.kind == "state"), key=lambda s: s.name):
        held = states.get(spec.name)
        if held is None:
            states[spec.name] = replace(spec, offset=end)
            end += aligned(spec.nbytes)
        elif (held.shape, held.dtype) != (spec.shape, spec.dtype):
            raise PlanError(
                f"state {spec.name!r}: one plan has {list(held.shape)} {held.dtype},"
                f" another {list(spec.shape)} {spec.dtype}"
            )
    return ArenaLayout(tuple(states.values()), end, end + max((p.arena_nbytes for p in plans), default=0))


def buffer_tensor(memory: Tensor, spec: BufferSpec) -> Tensor:
    """The buffer as a typed view of memory [bytes] uint8."""
    part = memory[spec.offset : spec.offset + spec.nbytes]
    return part.view(getattr(torch, spec.dtype)).view(spec.shape)


class Arena:
    """The tensors of one plan's buffers in ``memory`` [bytes] uint8, laid out by ``layout``."""

    def __init__(self, plan: Plan, memory: Tensor, layout: ArenaLayout) -> None:
        if memory.numel() < layout.block + plan.arena_nbytes:
            need = layout.block + plan.arena_nbytes
            raise PlanError(f"plan {plan.name!r} needs an arena of {need} bytes, got {memory.numel()}")
        block = memory[layout.block :]
        states = {spec.name: buffer_tensor(memory, spec) for spec in layout.states}
        self._tensors: Mapping[str, Tensor] = {
            spec.name: states[spec.name] if spec.kind == "state" else buffer_tensor(block, spec)
            for spec in plan.buffers
        }
        start, size = plan.metadata
        self.metadata = block[start : start + size]

    def buffer(self, name: str) -> Tensor:
        """The whole buffer."""
        return self._tensors[name]

    def view(self, view: View) -> Tensor:
        """The part of a buffer that a port is given."""
        tensor = self._tensors[view.buffer]
        if view.axis is None:
            return tensor
        tensor = tensor.narrow(view.axis, view.start, view.length)
        return tensor.squeeze(view.axis) if view.squeeze else tensor


def rehearsal_arena(plan: Plan) -> Arena:
    """An arena in which nobody is in any slot, for a segment that runs once for nobody: every buffer has memory of its
    own, integers are -1, all else is zero or false."""
    specs, end = [], 0
    for spec in plan.buffers:
        specs.append(replace(spec, offset=end, kind="temp"))
        end += aligned(spec.nbytes)
    apart = replace(plan, buffers=tuple(specs), arena_nbytes=end)
    arena = Arena(apart, torch.zeros(end, dtype=torch.uint8), arena_layout([apart]))
    for spec in specs:
        if spec.dtype.startswith("int"):
            arena.buffer(spec.name).fill_(-1)
    return arena


def metadata_arrays(plan: Plan, metadata: Tensor) -> dict[str, np.ndarray]:
    """Input name → numpy view of ``metadata`` [bytes] uint8, for every int64 input of the plan."""
    start, size = plan.metadata
    return {
        spec.name: buffer_tensor(metadata, replace(spec, offset=spec.offset - start)).numpy()
        for spec in plan.buffers
        if spec.kind == "input" and start <= spec.offset < start + size
    }
