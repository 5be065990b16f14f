"""place: which device runs each operation.

Knows: the graph's placement by node name. Does not know: what a device is or can do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from draftline.compiler.core import IR, BoundStage, Lookup, signature_of
from draftline.compiler.passes.bind import stage_nodes
from draftline.graph import placement as names
from draftline.graph.core import Graph
from draftline.graph.errors import PlanError

DEVICE = re.compile(r"(cpu|npu|cuda)(:\d+)?")


@dataclass(frozen=True)
class Place:
    """Fills ``Op.device``. A placement of a nested graph holds for all nodes in it, unless a longer path says
    otherwise. Raises PlanError for an unknown node, a malformed device, or a model whose stages are on two devices:
    its caches are on one."""

    name: str = "place"

    def run(self, ir: IR) -> IR:
        devices = devices_of(ir)
        owners(ir.stages, devices)
        return replace(ir, items=tuple(replace(op, device=devices[op.node]) for op in ir.ops))


def devices_of(ir: IR) -> dict[str, str]:
    """Return the device of every bound node. Raises PlanError as ``Place`` does."""
    return placed(ir.graph, ir.deployment.device)


def placed(graph: Graph, default: str) -> dict[str, str]:
    """Return (path of a stage node → device) for a whole graph. Raises PlanError."""
    paths = list(names.paths(graph))
    placement: dict[str, str] = {}
    for node, device in graph.placement:
        path, wrong = names.find(node, paths)
        if wrong:
            raise PlanError(f"placement of {node!r}: {wrong}")
        placement[path] = device_name(device)
    return {path: _device(path, placement, device_name(default)) for path, _ in stage_nodes(graph)}


def owners(stages: Iterable[BoundStage], devices: dict[str, str]) -> dict[str, str]:
    """Return (model → device) for the models whose caches ``stages`` use. Raises PlanError (rule OneOwner) for a
    model that is used on two devices."""
    found: dict[str, tuple[str, str]] = {}
    for stage in stages:
        for model in stage.signature.uses:
            node, device = found.setdefault(model, (stage.node, devices[stage.node]))
            if device != devices[stage.node]:
                raise PlanError(
                    f"{node!r} is on {device} and {stage.node!r} on {devices[stage.node]}, but both use the caches of"
                    f" the {model}, which are on one device: place them together",
                    rule="OneOwner",
                )
    return {model: device for model, (_, device) in found.items()}


def follow(prefill: Graph, graph: Graph, lookup: Lookup, default: str) -> Graph:
    """Return ``prefill`` placed as ``graph`` is: a stage that uses a model's caches goes where they are. What the
    prefill graph itself places stays. Raises PlanError (rule OneOwner) if the two do not agree."""
    at = owners(_bound(graph, lookup), placed(graph, default))
    mine, own = placed(prefill, default), {names.find(n, list(names.paths(prefill)))[0] for n, _ in prefill.placement}
    extra: dict[str, str] = {}
    for stage in _bound(prefill, lookup):
        for model in stage.signature.uses:
            wanted = at.get(model, mine[stage.node])
            if not any(stage.node == path or stage.node.startswith(path + ".") for path in own):
                extra[stage.node] = wanted
            elif mine[stage.node] != wanted:
                raise PlanError(
                    f"prefill graph {prefill.name!r} places {stage.node!r} on {mine[stage.node]}, but graph"
                    f" {graph.name!r} has the caches of the {model} on {wanted}",
                    rule="OneOwner",
                )
    return replace(prefill, placement=tuple(sorted({**extra, **dict(prefill.placement)}.items())))


def _bound(graph: Graph, lookup: Lookup) -> list[BoundStage]:
    return [BoundStage(p, n.stage, signature_of(lookup, n.stage), ()) for p, n in stage_nodes(graph)]


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
