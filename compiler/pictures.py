"""A plan for tools: ``emit`` gives mermaid, DOT or JSON.

Knows: picture syntax. Does not know: how a plan is made or explained in words.
"""

from __future__ import annotations

from draftline.compiler.plan import Plan, StageRun, View
from draftline.graph.errors import UsageError, nearest

FORMATS = ("mermaid", "dot", "json")


def emit(plan: Plan, form: str) -> str:
    """Return the plan as ``mermaid``, ``dot`` or ``json`` text. Raises UsageError for another format."""
    if form == "json":
        return plan.to_json(indent=2) + "\n"
    if form == "mermaid":
        return _mermaid(plan)
    if form == "dot":
        return _dot(plan)
    raise UsageError(f"cannot emit {form!r}" + nearest(form, FORMATS))


def _edges(plan: Plan) -> list[tuple[str, str, str]]:
    """Return (from, to, buffer) between runs, inputs, outputs and states; one edge per pair and buffer."""
    writers: dict[str, list[tuple[str, View]]] = {b.name: [(b.name, View(b.name))] for b in plan.buffers}
    temps = {b.name for b in plan.buffers if b.kind in ("temp", "output")}
    for name in temps:
        writers[name] = []
    edges: list[tuple[str, str, str]] = []

    def read(reader: str, view: View) -> None:
        for writer, written in writers[view.buffer]:
            if _touch(written, view):
                edges.append((writer, reader, view.buffer))

    for run in _runs(plan):
        for _, view in run.inputs:
            if view is not None:
                read(run.op, view)
        for _, view in run.outputs:
            writers[view.buffer].append((run.op, view))
    for name, view in plan.outputs:
        read(f"output {name}", view)
    for worker in plan.workers:
        for instruction in worker.instructions:
            for copy in instruction.copies if instruction.op == "WRITE" else ():
                if copy.source is not None:
                    read(f"next {copy.target}", copy.source)
    return list(dict.fromkeys(edges))


def _touch(a: View, b: View) -> bool:
    if a.axis is None or b.axis is None or a.axis != b.axis:
        return True
    return a.start < b.start + b.length and b.start < a.start + a.length


def _runs(plan: Plan) -> list[StageRun]:
    return [run for segment in plan.segments for run in segment.runs]


def _mermaid(plan: Plan) -> str:
    edges, ids = _edges(plan), _ids(plan)
    lines = ["flowchart TD"]
    for index, segment in enumerate(plan.segments):
        wave = ", per wave" if segment.per_wave else ""
        lines.append(f'  subgraph g{index}["{segment.name} on {segment.device}{wave}"]')
        lines += [f'    {ids[run.op]}["{run.op}<br/>{run.stage}"]' for run in segment.runs]
        lines.append("  end")
    inner = {run.op for run in _runs(plan)}
    lines += [f'  {ids[name]}(["{name}"])' for name in _ends(edges) if name not in inner]
    lines += [f'  {ids[a]} -->|"{buffer}"| {ids[b]}' for a, b, buffer in edges]
    return "\n".join(lines) + "\n"


def _dot(plan: Plan) -> str:
    edges, ids = _edges(plan), _ids(plan)
    lines = ["digraph plan {", "  rankdir=TB;", "  node [shape=box];"]
    for index, segment in enumerate(plan.segments):
        wave = ", per wave" if segment.per_wave else ""
        lines.append(f'  subgraph cluster_{index} {{ label="{segment.name} on {segment.device}{wave}";')
        lines += [f'    {ids[run.op]} [label="{run.op}\\n{run.stage}"];' for run in segment.runs]
        lines.append("  }")
    inner = {run.op for run in _runs(plan)}
    lines += [f'  {ids[name]} [label="{name}", shape=oval];' for name in _ends(edges) if name not in inner]
    lines += [f'  {ids[a]} -> {ids[b]} [label="{buffer}"];' for a, b, buffer in edges]
    return "\n".join([*lines, "}"]) + "\n"


def _ends(edges: list[tuple[str, str, str]]) -> list[str]:
    return list(dict.fromkeys(name for a, b, _ in edges for name in (a, b)))


def _ids(plan: Plan) -> dict[str, str]:
    """Return an identifier for each node: neither syntax takes dots and spaces in one."""
    names = [*(run.op for run in _runs(plan)), *_ends(_edges(plan))]
    return {name: f"n{index}" for index, name in enumerate(dict.fromkeys(names))}
