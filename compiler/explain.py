"""A plan for people: ``explain`` for the terminal, and the IR between passes for who works on the compiler.

Knows: plans and IRs as text. Does not know: how they were made. Pictures are in ``pictures.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from draftline.compiler.compile import PASSES, Dump
from draftline.compiler.core import IR, Op, show
from draftline.compiler.pictures import FORMATS, emit
from draftline.compiler.plan import Copy, Instruction, Plan, RowsAbove, StageRun, View
from draftline.graph.errors import UsageError, nearest

__all__ = ["FORMATS", "dump_text", "dumper", "emit", "explain", "instruction_text", "view_text"]


def explain(plan: Plan) -> str:
    """Return the plan as text: layout and rivals, chunks, segments, instructions, buffers, costs."""
    parts = [_head(plan), _layout(plan), _segments(plan), _workers(plan), _buffers(plan), _costs(plan)]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def dump_text(after: str, ir: IR) -> str:
    """Return the IR as text, as it is after the pass ``after``."""
    lines = [f"== IR of {ir.graph.name} after {after} ==", f"dims: {_pairs(ir.dims)}"]
    lines += [f"value {v.name}: {v.dtype} {show(v.shape)} ({v.kind})" for v in ir.values]
    for item in ir.items:
        read = ", ".join(f"{port}={view_text(view)}" for port, view in item.inputs)
        if isinstance(item, Op):
            wrote = ", ".join(f"{port}={view_text(view)}" for port, view in item.outputs)
            where = f" @ {item.device}" if item.device else ""
            where += f" if any of {item.gate}" if item.gate else ""
            lines.append(f"op {item.name}: {'poll' if item.poll else item.stage}({read}) -> {wrote}{where}")
        else:
            lines.append(f"loop {item.name}: for each chunk ({read}) -> {', '.join(v for _, v in item.results)}")
    lines += [f"output {name} = {view_text(view)}" for name, view in ir.outputs]
    lines += [f"state {name} becomes {view_text(view)}" for name, view in ir.state]
    if ir.layout is not None:
        lines.append(f"layout {ir.layout.chosen}, {len(ir.layout.chunks)} chunks, {ir.layout.waves_max} waves")
    lines += [
        f"segment {s.name} @ {s.device}{' per wave' if s.per_wave else ''}: {', '.join(s.ops)}" for s in ir.segments
    ]
    lines += [f"buffer {b.name} at {b.offset}, {b.nbytes} bytes" for b in ir.buffers]
    for worker in ir.workers:
        lines += [f"{worker.device}: {instruction_text(i)}" for i in worker.instructions]
    return "\n".join(lines) + "\n"


def dumper(write: Callable[[str], object], only: str = "") -> Dump:
    """Return what ``compile_graph`` takes as ``dump``: writes the IR after each pass, or after ``only``.

    Raises UsageError for an unknown pass.
    """
    if only and only not in PASSES:
        raise UsageError(f"unknown pass {only!r}" + nearest(only, PASSES))

    def dump(name: str, ir: IR) -> None:
        if only in ("", name):
            write(dump_text(name, ir))

    return dump


def view_text(view: View | None) -> str:
    """Return a view as people write it: ``pad.window[:, 0:8]``."""
    if view is None:
        return "none"
    if view.axis is None:
        return view.buffer
    columns = str(view.start) if view.squeeze else f"{view.start}:{view.start + view.length}"
    return f"{view.buffer}[{':, ' * view.axis}{columns}]"


def instruction_text(instruction: Instruction) -> str:
    """Return one instruction on one line."""
    parts = [instruction.segment] if instruction.segment else list(instruction.buffers)
    if instruction.edge >= 0:
        parts = [f"edge {instruction.edge}"]
    parts += [_copy(copy) for copy in instruction.copies]
    text = f"{instruction.op.ljust(5)} {', '.join(parts)}"
    if instruction.otherwise:
        text += f" else {', '.join(_copy(copy) for copy in instruction.otherwise)}"
    if instruction.when is not None:
        what = "rows" if isinstance(instruction.when, RowsAbove) else "live"
        text += f" wave {instruction.wave} if {what}({instruction.when.buffer}) > {instruction.when.n}"
    return text


def _copy(copy: Copy) -> str:
    return f"{copy.target} := {'all true' if copy.source is None else view_text(copy.source)}"


def _head(plan: Plan) -> list[str]:
    return [
        f"plan {plan.name}  K={plan.num_speculative_tokens}  dtype {plan.dtype}  key {plan.key[:12]}",
        f"dims: {_pairs(plan.dims)}",
        f"versions: {', '.join(f'{name} {text}' for name, text in plan.versions)}",
        f"outputs: {', '.join(f'{name} = {view_text(view)}' for name, view in plan.outputs)}",
        f"states: {', '.join(plan.state) or 'none'}",
    ]


def _layout(plan: Plan) -> list[str]:
    layout = plan.layout
    if not layout.chunks:
        return [f"no chunk loop: calls of {layout.chosen.tile} rows  cost {layout.cost:.0f} us"]
    lines = [
        f"layout {layout.chosen}  T={layout.chosen.tile}  chunks {len(layout.chunks)}"
        f"  waves per chunk at most {layout.waves_max}  cost {layout.cost:.0f} us"
    ]
    for chunk in layout.chunks:
        last = chunk.start + layout.chosen.rows - 1
        lines.append(f"  chunk {chunk.index}: columns {chunk.start} to {last}, active width {chunk.width}")
    lines += [f"  rejected {rival.layout}  cost {rival.cost:.0f} us: {rival.reason}" for rival in layout.rivals]
    lines += [f"  rejected {r.layout}  rule {r.rule}: {r.reason}" for r in layout.rejected]
    return lines


def _segments(plan: Plan) -> list[str]:
    lines = [f"segments ({len(plan.segments)})"]
    for segment in plan.segments:
        wave = "  once per wave" if segment.per_wave else ""
        lines.append(f"  {segment.name}  {segment.device}  {segment.backend}{wave}")
        lines += [f"    {_run(run)}" for run in segment.runs]
    return lines


def _run(run: StageRun) -> str:
    options = "".join(f" {name}={value}" for name, value in run.options)
    read = ", ".join(view_text(view) for _, view in run.inputs)
    wrote = ", ".join(view_text(view) for _, view in run.outputs)
    return f"{run.op}: {run.stage}{options} ({read}) -> {wrote}"


def _workers(plan: Plan) -> list[str]:
    lines = ["instructions"]
    for worker in plan.workers:
        lines.append(f"  worker {worker.device}")
        lines += [f"    {instruction_text(instruction)}" for instruction in worker.instructions]
    lines += [f"  edge {n}: {edge.source} tells {edge.target}" for n, edge in enumerate(plan.edges)]
    if plan.edges:
        lines.append(f"  hops of a step: {plan.hops} (the driver starts {plan.entry}, hears from {plan.exit})")
    deadlines = ", ".join(f"{deadline.op} {deadline.seconds:g} s" for deadline in plan.deadlines)
    return [*lines, f"  deadlines: {deadlines}"]


def _buffers(plan: Plan) -> list[str]:
    lines = [f"buffers ({len(plan.buffers)}), arena {plan.arena_nbytes} bytes"]
    rows = [(b.name, b.dtype, show(b.shape), b.kind, str(b.offset), str(b.nbytes)) for b in plan.buffers]
    lines += _table(("name", "dtype", "shape", "kind", "offset", "bytes"), rows)
    return [*lines, f"  metadata of a step: {plan.metadata[1]} bytes at {plan.metadata[0]}, one copy"]


def _costs(plan: Plan) -> list[str]:
    lines = [f"costs (acceptance {plan.acceptance:g} assumed)"]
    rows = [(e.stage, str(e.width or "any"), f"{e.micros:g}", e.source) for e in plan.cost_table]
    return lines + _table(("stage", "width", "us", "source"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return ["  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]


def _pairs(pairs: Iterable[tuple[str, int]]) -> str:
    return " ".join(f"{name}={value}" for name, value in pairs) or "none yet"
