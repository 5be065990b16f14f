"""Rules on values and operations: who writes, who reads, in which shape.

Knows: the IR's values, items and states. Does not know: layouts, memory, instructions.
Each function yields one message for each violation and nothing for a valid IR.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from draftline.compiler.core import IR, Loop, Op, Value, resolve_signature, shape_of, show
from draftline.compiler.plan import View
from draftline.graph.errors import PlanError


def names_unique(ir: IR) -> Iterator[str]:
    for what, names in (
        ("values", [value.name for value in ir.values]),
        ("operations", [item.name for item in ir.items]),
        ("segments", [segment.name for segment in ir.segments]),
        ("buffers", [spec.name for spec in ir.buffers]),
    ):
        yield from (f"{count} {what} are called {name!r}" for name, count in Counter(names).items() if count > 1)


def views_inside(ir: IR) -> Iterator[str]:
    values = {value.name: value for value in ir.values}
    for where, view in _views(ir):
        if view.buffer not in values:
            yield f"{where} names the unknown value {view.buffer!r}"
            continue
        shape = values[view.buffer].shape
        if view.axis is None:
            continue
        size = shape[view.axis] if 0 <= view.axis < len(shape) else 0
        if isinstance(size, int) and not 0 <= view.start <= view.start + view.length <= size:
            yield (
                f"{where} shows {view.start} to {view.start + view.length} of axis {view.axis} of"
                f" {view.buffer} {show(shape)}"
            )
        if view.squeeze and view.length != 1:
            yield f"{where} drops axis {view.axis} of {view.buffer}, but shows {view.length} of it"


def one_producer(ir: IR) -> Iterator[str]:
    """Every element of a value is written once; inputs and states are written by nobody in the step."""
    values = {value.name: value for value in ir.values}
    writes = _writes(ir)
    for name, value in values.items():
        mine = writes.get(name, [])
        if value.kind in ("input", "state"):
            yield from (f"{item} writes {value.kind} {name!r}" for _, item, _ in mine)
            continue
        if not mine and not _empty(value) and (ir.items or ir.outputs):
            yield f"nobody writes value {name!r}"
        for a, (_, first, view) in enumerate(mine):
            for _, second, other in mine[a + 1 :]:
                if overlaps(view, other, value):
                    yield f"{first} and {second} both write {_range(view)} of {name!r}"


def used_after_produced(ir: IR) -> Iterator[str]:
    values = {value.name: value for value in ir.values}
    writes = _writes(ir)
    end = len(ir.items)
    for at, reader, view in [*_reads(ir), *((end, f"output {n}", v) for n, v in (*ir.outputs, *ir.state))]:
        value = values.get(view.buffer)
        for when, writer, written in writes.get(view.buffer, []):
            if value is not None and when >= at and overlaps(view, written, value):
                yield f"{reader} reads {_range(view)} of {view.buffer!r} before {writer} has written it"


def no_alias(ir: IR) -> Iterator[str]:
    """No operation writes what it reads: a stage may fill its outputs in any order."""
    values = {value.name: value for value in ir.values}
    for op in ir.ops:
        for port, written in op.outputs:
            for source, read in op.inputs:
                same = read is not None and read.buffer == written.buffer and read.buffer in values
                if same and read is not None and overlaps(read, written, values[read.buffer]):
                    yield f"{op.name} writes {port!r} over its own input {source!r} in {read.buffer!r}"


def shapes_agree(ir: IR) -> Iterator[str]:
    """Every operation's views have the shapes and dtypes of its stage's signature."""
    values, dims = {value.name: value for value in ir.values}, dict(ir.dims)
    for op in ir.ops:
        if op.poll:
            yield from _poll_agrees(op, values)
            continue
        signature = ir.stage(op.node).signature
        part = {"W": op.width} if signature.shift and op.width else {}
        try:
            inputs = {port: None if view is None else shape_of(view, values) for port, view in op.inputs}
            wanted = resolve_signature(signature, inputs, {**dims, **part}, op.name)
            found = {port: shape_of(view, values) for port, view in op.outputs}
        except PlanError as error:
            yield str(error)
            continue
        for port, shape in found.items():
            if shape != wanted.get(port):
                yield f"{op.name}.{port} is {show(shape)}, its stage gives {show(wanted.get(port, ()))}"
        for ports, connections in ((signature.inputs, op.inputs), (signature.outputs, op.outputs)):
            dtypes = {port.name: port.dtype for port in ports}
            for name, view in connections:
                wanted_dtype = dtypes.get(name, "model")
                if view is None or wanted_dtype in ("model", values[view.buffer].dtype):
                    continue
                yield f"{op.name}.{name} is {values[view.buffer].dtype}, its stage wants {wanted_dtype}"


def _poll_agrees(op: Op, values: dict[str, Value]) -> Iterator[str]:
    """A poll gives on what it takes: bool, and of one shape."""
    shapes = {port: shape_of(view, values) for port, view in (*op.inputs, *op.outputs) if view is not None}
    dtypes = {values[view.buffer].dtype for view in (*op.views(), *(v for _, v in op.outputs))}
    if len(set(shapes.values())) > 1 or dtypes != {"bool"}:
        yield f"{op.name} takes and gives {shapes} of {', '.join(sorted(dtypes))}: want bool of one shape"


def state_stable(ir: IR) -> Iterator[str]:
    """A state has the same shape and dtype in every step."""
    values = {value.name: value for value in ir.values}
    for name, view in ir.state:
        if view.buffer not in values or name not in values:
            yield f"state {name!r} or its next value {view.buffer!r} is unknown"
            continue
        now, after = values[name], (shape_of(view, values), values[view.buffer].dtype)
        if (now.shape, now.dtype) != after:
            yield f"state {name!r} is {now.dtype} {show(now.shape)}, but becomes {after[1]} {show(after[0])}"


def symbols_bound(ir: IR) -> Iterator[str]:
    """Once no chunk loop is left, every dimension is an integer."""
    if any(isinstance(item, Loop) for item in ir.items) or "W" not in dict(ir.dims):
        return
    for value in ir.values:
        yield from (
            f"{value.name} {show(value.shape)}: {dim!r} has no value" for dim in value.shape if isinstance(dim, str)
        )


def overlaps(a: View, b: View, value: Value) -> bool:
    """Return whether two views of the same value share an element."""
    if _empty(value) or 0 in (a.length if a.axis is not None else 1, b.length if b.axis is not None else 1):
        return False
    if a.axis is None or b.axis is None or a.axis != b.axis:
        return True
    return a.start < b.start + b.length and b.start < a.start + a.length


def _empty(value: Value) -> bool:
    return math.prod(dim if isinstance(dim, int) else 1 for dim in value.shape) == 0


def _range(view: View) -> str:
    return "all" if view.axis is None else f"[{view.start}, {view.start + view.length}) of axis {view.axis}"


def _writes(ir: IR) -> dict[str, list[tuple[int, str, View]]]:
    writes: dict[str, list[tuple[int, str, View]]] = {}
    for at, item in enumerate(ir.items):
        views = [v for _, v in item.outputs] if isinstance(item, Op) else [View(v) for _, v in item.results]
        for view in views:
            writes.setdefault(view.buffer, []).append((at, item.name, view))
    return writes


def _reads(ir: IR) -> Iterator[tuple[int, str, View]]:
    for at, item in enumerate(ir.items):
        yield from ((at, f"{item.name}.{port}", view) for port, view in item.inputs if view is not None)


def _views(ir: IR) -> Iterator[tuple[str, View]]:
    for item in ir.items:
        yield from ((f"{item.name}.{port}", view) for port, view in item.inputs if view is not None)
        if isinstance(item, Op):
            yield from ((f"{item.name}.{port}", view) for port, view in item.outputs)
        else:
            yield from ((f"{item.name}.{name}", View(value)) for name, value in item.results)
    yield from ((f"output {name}", view) for name, view in ir.outputs)
    yield from ((f"state {name}", view) for name, view in ir.state)
