"""Pictures of a graph: mermaid, DOT, and text for a terminal. Knows: nodes and edges. Does not know: types."""

from __future__ import annotations

from collections.abc import Iterator

from .core import ForEach, Graph, Node, Repeat
from .order import topological

Edge = tuple[str, str, str]
"""(producer path, consumer path, label)."""


def loop_text(node: Node) -> str:
    """``×K``, ``for each chunk``, or nothing."""
    if isinstance(node.loop, Repeat):
        return f"×{node.loop.times}"
    return f"for each {node.loop.over}" if isinstance(node.loop, ForEach) else ""


def _title(node: Node) -> str:
    what = node.stage or (node.graph.name if node.graph else "")
    return " ".join(part for part in (node.name, f"({what})" if what != node.name else "", loop_text(node)) if part)


def _producer(ref: str) -> str:
    head, dot, _ = ref.partition(".")
    return head if dot else f"in:{head}"


def _edges(graph: Graph) -> list[Edge]:
    """Edges between top-level nodes, inputs (``in:tail``) and outputs (``out:tokens``); one per pair."""
    ports: dict[tuple[str, str], list[str]] = {}
    for node in topological(graph):
        for port, ref in node.inputs:
            ports.setdefault((_producer(ref), node.name), []).append(port)
    for kind, pairs in (("out", graph.outputs), ("state", graph.state)):
        for name, ref in pairs:
            ports.setdefault((_producer(ref), f"{kind}:{name}"), []).append(name)
    return [(a, b, ", ".join(labels)) for (a, b), labels in ports.items()]


_RESERVED = {"end", "graph", "subgraph", "flowchart", "style", "class", "click", "default", "direction", "linkstyle"}


def _ident(path: str) -> str:
    """A mermaid id; a reserved word as an id would break the whole picture."""
    ident = path.replace(":", "_").replace(".", "_")
    return ident + "_" if ident.lower() in _RESERVED else ident


def mermaid(graph: Graph) -> str:
    """A mermaid flowchart; nested graphs are subgraphs."""
    return "\n".join(["flowchart LR", *_mermaid_body(graph, "", "  ")]) + "\n"


def _mermaid_body(graph: Graph, path: str, indent: str) -> Iterator[str]:
    ends = {end for a, b, _ in _edges(graph) for end in (a, b) if ":" in end}
    if not path:
        for end in sorted(ends):
            yield f'{indent}{_ident(end)}(["{end.partition(":")[2]}{"′" if end.startswith("state") else ""}"])'
    for node in topological(graph):
        name = _ident(path + node.name)
        if node.graph is None:
            yield f'{indent}{name}["{_title(node)}"]'
        else:
            yield f'{indent}subgraph {name}["{_title(node)}"]'
            yield from _mermaid_body(node.graph, f"{path}{node.name}.", indent + "  ")
            yield f"{indent}end"
    for a, b, label in _edges(graph):
        if path and (":" in a or ":" in b):
            continue  # a subgraph's own ends are its border
        yield f'{indent}{_end(path, a)} -- "{label}" --> {_end(path, b)}'


def _end(path: str, end: str) -> str:
    return _ident(end if ":" in end else path + end)


def dot(graph: Graph) -> str:
    """A Graphviz digraph; nested graphs are clusters."""
    lines = [f'digraph "{graph.name}" {{', "  rankdir=LR; node [shape=box];", *_dot_nodes(graph, "", "  ")]
    for a, b, label in _edges(graph):
        for end in (a, b):
            if ":" in end:
                lines.append(f'  "{end}" [shape=oval, label="{end.partition(":")[2]}"];')
        lines.append(f'  "{_anchor(graph, "", a)}" -> "{_anchor(graph, "", b)}" [label="{label}"];')
    return "\n".join([*dict.fromkeys(lines), "}"]) + "\n"


def _dot_nodes(graph: Graph, path: str, indent: str) -> Iterator[str]:
    for node in topological(graph):
        if node.graph is None or not node.graph.nodes:  # a cluster without nodes has nothing to end an edge at
            yield f'{indent}"{path}{node.name}" [label="{_title(node)}"];'
            continue
        yield f'{indent}subgraph "cluster_{path}{node.name}" {{ label="{_title(node)}";'
        inner, prefix = node.graph, f"{path}{node.name}."
        yield from _dot_nodes(inner, prefix, indent + "  ")
        for a, b, label in _edges(inner):
            if ":" not in a and ":" not in b:
                yield f'{indent}  "{_anchor(inner, prefix, a)}" -> "{_anchor(inner, prefix, b)}" [label="{label}"];'
        yield f"{indent}}}"


def _anchor(graph: Graph, path: str, end: str) -> str:
    """The box that an edge ends at: for a cluster, its first node, however deep."""
    node = graph.node(end)
    if node is None or node.graph is None or not node.graph.nodes:
        return path + end
    return _anchor(node.graph, f"{path}{end}.", topological(node.graph)[0].name)


def text(graph: Graph) -> str:
    """A drawing for a terminal: one box per node in data-flow order, with what comes in and what goes where."""
    lines = [f"{graph.name}"]
    if graph.inputs:
        lines.append("  in   " + ", ".join(p.name for p in graph.inputs))
    for node in topological(graph):
        lines += ["    │", *("  " + line for line in _box(node))]
    lines.append("    │")
    lines += [f"  out  {name} ← {ref}" for name, ref in graph.outputs]
    lines += [f"  next {name} ← {ref}" for name, ref in graph.state]
    return "\n".join(lines) + "\n"


def _box(node: Node) -> list[str]:
    body = [f"{port} ← {ref}" for port, ref in node.inputs]
    if isinstance(node.loop, Repeat | ForEach):
        body += [f"{port} ↻ {output}" for port, output in node.loop.carry]
        body += [f"{output} ⇉ {name}" for output, name in node.loop.collect]
    if node.graph is not None:
        for inner in topological(node.graph):
            body += _box(inner)
    title = _title(node)
    width = max(map(len, [title + "  ", *body]))
    top = f"┌─ {title} " + "─" * (width - len(title) - 1) + "┐"
    return [top, *(f"│ {line.ljust(width)} │" for line in body), "└" + "─" * (width + 2) + "┘"]
