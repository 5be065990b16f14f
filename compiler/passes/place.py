"""place: which device runs each operation.

Knows: the graph's placement by node name. Does not know: what a device is or can do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from draftline.compiler.core import IR
from draftline.graph.errors import PlanError, nearest

DEVICE = re.compile(r"(cpu|npu|cuda)(:\d+)?")


@dataclass(frozen=True)
class Place:
    """Fills ``Op.device``. A placement of a nested graph holds for all nodes in it, unless a longer path says
    otherwise. Raises PlanError for an unknown node or a malformed device."""

    name: str = "place"

    def run(self, ir: IR) -> IR:
        devices = devices_of(ir)
        return replace(ir, items=tuple(replace(op, device=devices[op.node]) for op in ir.ops))


def devices_of(ir: IR) -> dict[str, str]:
    """Return the device of every bound node. Raises PlanError as ``Place`` does."""
    paths = {prefix for stage in ir.stages for prefix in _prefixes(stage.node)}
    placement: dict[str, str] = {}
    for node, device in ir.graph.placement:
        if node not in paths:
            raise PlanError(f"placement of {node!r}: the graph has no such node" + nearest(node, paths))
        placement[node] = device_name(device)
    default = device_name(ir.deployment.device)
    return {stage.node: _device(stage.node, placement, default) for stage in ir.stages}


def device_name(device: str) -> str:
    """Return ``cpu:0`` for ``cpu`` or ``cpu:0``. Raises PlanError for anything that is no device."""
    if not DEVICE.fullmatch(device):
        raise PlanError(f"{device!r} is not a device: want cpu, npu or cuda, and an index, such as cpu:0")
    return device if ":" in device else f"{device}:0"


def _prefixes(path: str) -> list[str]:
    """Return the path and all that enclose it, longest first."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _device(path: str, placement: dict[str, str], default: str) -> str:
    return next((placement[prefix] for prefix in _prefixes(path) if prefix in placement), default)
