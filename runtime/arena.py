"""The arena: one block of bytes in which every buffer of a plan lies at a fixed offset.

Knows: offsets, views, states that several plans share. Does not know: stages, order.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.compiler.plan import BufferSpec, Plan, View
from draftline.graph.errors import PlanError


class StateStore:
    """Tensors that outlive a step, by name. Plans that name the same state share it, prefill and decode alike."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[str, Tensor] = {}

    def get(self, spec: BufferSpec) -> Tensor:
        """The state of that name, zero when first asked for. Raises PlanError if two plans disagree on it."""
        held = self._tensors.get(spec.name)
        if held is None:
            held = torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device=self._device)
            self._tensors[spec.name] = held
        if tuple(held.shape) != spec.shape or held.dtype != getattr(torch, spec.dtype):
            raise PlanError(
                f"state {spec.name!r}: one plan has {list(held.shape)} {held.dtype},"
                f" another {list(spec.shape)} {spec.dtype}"
            )
        return held


def buffer_tensor(block: Tensor, spec: BufferSpec) -> Tensor:
    """The buffer as a typed view of block [bytes] uint8."""
    part = block[spec.offset : spec.offset + spec.nbytes]
    return part.view(getattr(torch, spec.dtype)).view(spec.shape)


class Arena:
    """The tensors of one plan's buffers, over a block that other plans may use between steps."""

    def __init__(self, plan: Plan, block: Tensor, states: StateStore) -> None:
        if block.numel() < plan.arena_nbytes:
            raise PlanError(f"plan {plan.name!r} needs an arena of {plan.arena_nbytes} bytes, got {block.numel()}")
        self._tensors: Mapping[str, Tensor] = {
            spec.name: states.get(spec) if spec.kind == "state" else buffer_tensor(block, spec) for spec in plan.buffers
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
