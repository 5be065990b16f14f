"""unroll: the graph as operations; a repeat ×K becomes K of them, a chunk loop stays one item.

Knows: graph inputs, outputs and states as values. Does not know: the layout, devices, memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftline.compiler.core import IR, MODEL_DTYPES, Value, close
from draftline.compiler.expand import expand_graph
from draftline.compiler.expansion import Expansion, Mark, Views
from draftline.compiler.plan import View
from draftline.graph.errors import PlanError


@dataclass(frozen=True)
class Unroll:
    """Fills ``values``, ``items``, ``outputs`` and ``state``. Raises PlanError."""

    name: str = "unroll"

    def run(self, ir: IR) -> IR:
        dtype, dims = ir.deployment.dtype, dict(ir.dims)
        ctx = Expansion({stage.node: stage for stage in ir.stages}, dims, dtype)
        carried = {name for name, _ in ir.graph.state}
        inputs: Views = {}
        for port in ir.graph.inputs:
            ctx.values[port.name] = Value(
                port.name,
                close(port.shape, {}, dims, f"input {port.name!r}"),
                MODEL_DTYPES[dtype] if port.dtype == "model" else port.dtype,
                "state" if port.name in carried else "input",
            )
            inputs[port.name] = View(port.name)
        wanted = [*ir.graph.outputs, *((f"state {name}", ref) for name, ref in ir.graph.state)]
        results = expand_graph(ctx, replace(ir.graph, outputs=tuple(wanted)), "", inputs, {}, Mark())
        produced: dict[str, View] = {}
        for name, ref in wanted:
            view = results[name]
            if view is None:
                raise PlanError(f"{name} of graph {ir.graph.name!r} has no value: {ref!r} never runs here")
            produced[name] = view
        return replace(
            ir,
            values=tuple(ctx.values.values()),
            items=tuple(ctx.items),
            outputs=tuple((name, produced[name]) for name, _ in ir.graph.outputs),
            state=tuple((name, produced[f"state {name}"]) for name, _ in ir.graph.state),
        )
