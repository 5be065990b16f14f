"""chunk: every chunk loop becomes C runs of its body on S columns each; every shape becomes integers.

Knows: chunks, W = C·S, what later operations call a loop's outputs. Does not know: waves, devices, memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from draftline.compiler.core import IR, Loop, Op, Value, close
from draftline.compiler.expand import expand_chunks
from draftline.compiler.expansion import Expansion
from draftline.compiler.plan import View
from draftline.graph.core import ForEach
from draftline.graph.errors import PlanError


@dataclass(frozen=True)
class CutChunks:
    """Replaces each ``Loop`` by operations and fills the symbols ``S`` and ``W``. Raises PlanError."""

    name: str = "chunk"

    def run(self, ir: IR) -> IR:
        layout = ir.chosen()
        rows = layout.chosen.rows
        dims = {**dict(ir.dims), "S": rows, "W": max(1, len(layout.chunks)) * rows}
        values = {v.name: Value(v.name, close(v.shape, {}, dims, v.name), v.dtype, v.kind) for v in ir.values}
        ctx = Expansion({stage.node: stage for stage in ir.stages}, dims, ir.deployment.dtype, values)
        final: dict[str, View] = {}
        for item in ir.items:
            if isinstance(item, Op):
                ctx.items.append(replace(item, inputs=_point(item.inputs, final)))
                continue
            loop = replace(item, inputs=_point(item.inputs, final))
            # Names of results that are not collected stood for the last chunk's output until now.
            stand_ins = _stand_ins(loop)
            for name in stand_ins.values():
                del ctx.values[name]
            views = expand_chunks(ctx, loop, layout.chunks, rows)
            for output, name in stand_ins.items():
                view = views[output]
                if view is None:
                    raise PlanError(f"{loop.path}.{output} has no value")
                final[name] = view
        return replace(
            ir,
            dims=tuple(sorted(dims.items())),
            values=tuple(ctx.values.values()),
            items=tuple(ctx.items),
            outputs=tuple((name, _final(view, final)) for name, view in ir.outputs),
            state=tuple((name, _final(view, final)) for name, view in ir.state),
        )


def _stand_ins(loop: Loop) -> dict[str, str]:
    assert isinstance(loop.node.loop, ForEach)
    collected = {name for _, name in loop.node.loop.collect}
    return {output: value for output, value in loop.results if output not in collected}


def _point(
    inputs: tuple[tuple[str, View | None], ...], final: Mapping[str, View]
) -> tuple[tuple[str, View | None], ...]:
    return tuple((port, None if view is None else _final(view, final)) for port, view in inputs)


def _final(view: View, final: Mapping[str, View]) -> View:
    """Return ``view`` of what a stand-in stood for. A stand-in is only ever seen whole."""
    return final.get(view.buffer, view)
