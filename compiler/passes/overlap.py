"""overlap: verify the first chunk while later drafts are still being drafted on another device.

Knows: which columns of the window each operation needs, and when a draft is no longer needed. Does not know: how
devices tell each other, what a stage computes.

The window is built in parts, cut where a chunk begins and where what its accept rule looks ahead ends. The order of
operations is then: whatever can run runs, and drafting goes on where nothing else can. A draft that no chunk under
verification needs any more is cancelled: before each, its device asks (a poll) which slots still live.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from itertools import pairwise

from draftline.compiler.core import IR, Op, Value, shape_of
from draftline.compiler.passes.fuse import LIVE
from draftline.compiler.plan import View
from draftline.compiler.rules_values import overlaps
from draftline.graph.errors import PlanError


@dataclass(frozen=True)
class Overlap:
    """Changes ``items`` and ``values`` of a deployment with ``overlap``, where K ≥ S and nothing of the chunk loop is
    on the drafter's device; leaves everything else as it is."""

    name: str = "overlap"

    def run(self, ir: IR) -> IR:
        if not ir.deployment.overlap or len(ir.chosen().chunks) < 2:
            return ir
        window = next((op for op in ir.ops if not op.width and ir.stage(op.node).signature.shift), None)
        if window is None:
            return ir
        drafts = _drafts(ir, window)
        if not drafts or drafts[0].device in {op.device for op in ir.ops if op.chunk or op.per_wave}:
            return ir
        _check_readers(ir, drafts)
        ops = _narrow_readers(ir, window)
        at = ops.index(window)
        ops[at : at + 1] = _parts(ir, window)
        ops = _in_order(ir, ops, {op.name for op in drafts})
        return _gate(replace(ir, items=tuple(ops)), {op.name: op.iteration for op in drafts})


def _drafts(ir: IR, window: Op) -> list[Op]:
    """The operations that fill the window's drafts, one column each."""
    port = ir.stage(window.node).signature.shift[0][0]
    view = window.input(port)
    if view is None:
        return []
    found = [op for op in ir.ops if view.buffer in op.writes()]
    return found if len(found) > 1 else []


def _check_readers(ir: IR, drafts: list[Op]) -> None:
    """Raise PlanError if a chunk needs more of the drafts than their columns of the window."""
    made = {name for op in drafts for name in op.writes()}
    for op in ir.ops:
        port = next((p for p, v in op.inputs if op.width and v is not None and v.buffer in made), None)
        if port is not None:
            raise PlanError(
                f"{op.name}.{port} reads what all drafts have left, so {op.stage!r} cannot begin before the last:"
                " there is nothing to overlap; use --no-overlap (settings.overlap)"
            )


def _ahead(ir: IR, op: Op, port: str) -> int | None:
    return dict(ir.stage(op.node).signature.ahead).get(port)


def _narrow_readers(ir: IR, window: Op) -> list[Op]:
    """Operations of a chunk are shown no more of the window than their stage says it reads."""
    rows, built = ir.chosen().chosen.rows, set(window.writes())
    values = {value.name: value for value in ir.values}

    def narrowed(op: Op, port: str, view: View | None) -> View | None:
        n = _ahead(ir, op, port)
        if n is None or view is None or view.axis is not None or view.buffer not in built:
            return view
        width = shape_of(view, values)[1]
        assert isinstance(width, int)
        return View(view.buffer, 1, 0, min(width, op.start + rows + n))

    return [
        op if not op.width else replace(op, inputs=tuple((p, narrowed(op, p, v)) for p, v in op.inputs))
        for op in ir.ops
    ]


def _parts(ir: IR, window: Op) -> list[Op]:
    """The window's operation as one per part, cut at c·S and at c·S + ahead."""
    signature, dims, chunks = ir.stage(window.node).signature, dict(ir.dims), ir.chosen().chunks
    ahead = {n for op in ir.ops for _, n in ir.stage(op.node).signature.ahead}
    cuts = {0, dims["W"], *(c.start for c in chunks), *(c.start + n for c in chunks[1:] for n in ahead)}
    edges = sorted(cut for cut in cuts if cut <= dims["W"])
    (port, shift), drafts = signature.shift[0], dims["K"]
    parts = []
    for index, (start, end) in enumerate(pairwise(edges)):
        first = min(max(start - shift, 0), drafts)
        view = window.input(port)
        assert view is not None
        cut = View(view.buffer, 1, first, max(0, min(end - shift, drafts) - first))
        outputs = []
        for name, whole in window.outputs:
            declared = signature.output(name)
            assert declared is not None
            if "W" in declared.shape:
                outputs.append((name, View(whole.buffer, 1, start, end - start)))
            elif not index:
                outputs.append((name, whole))
            elif not declared.optional:
                raise PlanError(f"{window.node}.{name} is not optional, so the window cannot be built in parts")
        parts.append(
            replace(
                window,
                name=f"{window.name}.p{index}",
                inputs=tuple((p, cut if p == port else v) for p, v in window.inputs),
                outputs=tuple(outputs),
                start=start,
                width=end - start,
            )
        )
    return parts


def _in_order(ir: IR, ops: list[Op], drafts: set[str]) -> list[Op]:
    """Operations after what they read; a draft only where nothing else can run."""
    values = {value.name: value for value in ir.values}
    needs: list[set[int]] = []
    for op in ops:
        needs.append(
            {
                i
                for i, other in enumerate(ops)
                for _, written in other.outputs
                for view in op.views()
                if view.buffer == written.buffer and overlaps(view, written, values[view.buffer])
            }
        )
    ready = [(op.name in drafts, i) for i, op in enumerate(ops) if not needs[i]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for j, need in enumerate(needs):
            if i in need:
                need.discard(i)
                if not need:
                    heapq.heappush(ready, (ops[j].name in drafts, j))
    return [ops[i] for i in order]


def _gate(ir: IR, drafts: dict[str, int]) -> IR:
    """Before draft i, ask for the verdict of every chunk c that may be under way and does not need it: (c+1)·S ≤ i."""
    rows, slots = ir.chosen().chosen.rows, ir.deployment.max_num_seqs
    verdicts = {op.chunk - 1: op.input(LIVE) for op in ir.ops if op.per_wave and op.chunk}
    items: list[Op] = []
    values = list(ir.values)
    gate = ""
    for op in ir.ops:
        asked = [c for c in verdicts if op.name in drafts and (c + 1) * rows <= drafts[op.name]]
        for chunk in sorted(asked):
            name = f"{op.name}.gate.c{chunk}"
            before = View(gate) if gate else None
            asks = (("there", verdicts[chunk]), ("before", before))
            items.append(Op(name, op.node, "", asks, (("live", View(name)),), device=op.device, poll=True))
            values.append(Value(name, (slots,), "bool"))
            gate = name
        if asked:
            port = ir.stage(op.node).signature.cancel
            free = port and op.input(port) is None
            inputs = tuple((p, View(gate) if free and p == port else v) for p, v in op.inputs)
            op = replace(op, gate=gate, inputs=inputs)
        items.append(op)
    return replace(ir, items=tuple(items), values=tuple(values))
