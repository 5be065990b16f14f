"""Graph files: YAML to Graph and back, packaged examples, overrides.

Knows: files, lines, keys. Does not know: rules of a graph (verify.py), stages. Nothing is ever eval'd.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .core import ForEach, Graph, Node, Port, Repeat
from .errors import GraphError, GraphFileError, nearest
from .lines import Located, parse, set_path
from .schema import GraphModel, NestedModel, NodeModel, json_schema

EXAMPLES = Path(__file__).parent / "examples"

__all__ = ["dumps", "json_schema", "load_graph", "loads", "packaged", "resolve_prefill"]


def packaged() -> list[str]:
    """File names of the packaged examples."""
    return sorted(p.name for p in EXAMPLES.glob("*.yaml"))


def load_graph(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Graph:
    """The graph of a file, or the packaged example of that name (with or without ``.yaml``).

    ``overrides`` are strings such as ``settings.tile=16``. Raises GraphFileError with file, line and key.
    """
    text, source = _read(str(path_or_name))
    return loads(text, source, overrides)


def resolve_prefill(graph: Graph, source: str | None) -> Graph | None:
    """The graph that ``graph.prefill`` names: beside ``source`` first, then as ``load_graph`` finds it."""
    if not graph.prefill:
        return None
    beside = Path(source).parent / graph.prefill if source else Path(graph.prefill)
    try:
        return load_graph(beside if beside.is_file() else graph.prefill)
    except GraphFileError as error:
        raise GraphFileError(f"{error} (prefill of graph {graph.name!r})", error.rule) from None


def _read(name: str) -> tuple[str, str]:
    if not name:
        raise GraphFileError(f"no graph is named; a path or one of {', '.join(packaged())} is wanted")
    path = Path(name)
    try:
        if path.exists():
            return path.read_text("utf-8"), name
    except UnicodeDecodeError as error:
        raise GraphFileError(f"{name}: cannot be read as UTF-8 text: {error}") from None
    except OSError as error:
        raise GraphFileError(f"{name}: cannot be read: {error.strerror}; the path of a text file is wanted") from None
    for known in packaged():
        if name in (known, known.removesuffix(".yaml")):
            return (EXAMPLES / known).read_text("utf-8"), known
    spelt = name if name.endswith(".yaml") else f"{name}.yaml"
    raise GraphFileError(f"{name}: no such file, and no packaged graph of that name{nearest(spelt, packaged())}")


def loads(text: str, source: str = "<text>", overrides: Sequence[str] = ()) -> Graph:
    """The graph in ``text``; ``source`` stands in messages. Raises GraphFileError."""
    located = parse(text, source)
    for override in overrides:
        set_path(located, override, GraphModel)
    try:
        model = GraphModel.model_validate(located.value)
    except ValidationError as error:
        raise _first_problem(error, located) from None
    return _graph(model, located)


def _first_problem(error: ValidationError, located: Located) -> GraphFileError:
    """The first schema error as one line: file:line, what, where, what would be right."""
    # Unknown keys first: a misspelt key also makes the right one missing, and it is the cause.
    details = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")[0]
    path = tuple(p for p in details["loc"] if not (isinstance(p, str) and p.startswith(("function-", "constrained-"))))
    path = located.known_prefix(tuple(p for p in path if p != "[key]"))
    where = ".".join(map(str, path)) or "the top level"
    if details["type"] == "extra_forbidden":
        parent, key = path[:-1], str(path[-1])
        known = _fields_at(GraphModel, parent)
        inside = ".".join(map(str, parent)) or "the top level"
        return GraphFileError(f"{located.at(path)}: unknown key {key!r} at {inside}{nearest(key, known)}", "schema")
    return GraphFileError(f"{located.at(path)}: {where}: {_wanted(details)}", "schema")


def _wanted(details: ErrorDetails) -> str:
    """What would be right, and the value that is there if it fits on the line."""
    kind, value = details["type"], details["input"]
    if kind in ("dict_type", "model_type"):
        says = "a mapping is wanted"
    elif kind == "string_pattern_mismatch":
        says = "a name of letters, digits and _ is wanted"
    else:
        says = details["msg"]
    if kind == "missing" or not isinstance(value, bool | int | float | str | None) or len(repr(value)) > 40:
        return says
    return f"{says}, not {'nothing' if value is None else repr(value)}"


def _fields_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Field names of the model that describes ``path``."""
    here: Any = model
    for part in path:
        if get_origin(here) is dict:  # a mapping of names: this part is a name
            here = get_args(here)[1]
        else:
            field = here.model_fields.get(str(part)) if _is_model(here) else None
            here = None if field is None else field.annotation
        if get_origin(here) is not dict:  # Model, or Model | None
            here = next((a for a in (here, *get_args(here)) if _is_model(a)), None)
    return list(here.model_fields) if _is_model(here) else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _pairs(mapping: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(mapping.items())


def _sorted(mapping: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Pairs whose order means nothing: equal graphs must compare equal."""
    return tuple(sorted(mapping.items()))


def _freeze(value: Any) -> Any:
    return tuple(_freeze(v) for v in value) if isinstance(value, list) else value


def _node(name: str, m: NodeModel, located: Located, path: tuple[str, ...]) -> Node:
    loop: Repeat | ForEach | None = None
    if m.repeat is not None and m.for_each is not None:
        raise GraphFileError(f"{located.at((*path, 'repeat'))}: node {name!r} has both repeat and for_each; keep one")
    if m.repeat is not None:
        loop = Repeat(m.repeat.times, _sorted(m.repeat.carry), _sorted(m.repeat.collect))
    if m.for_each is not None:
        loop = ForEach(tuple(m.for_each.each), _sorted(m.for_each.carry), _sorted(m.for_each.collect), m.for_each.over)
    if (m.stage is None) == (m.graph is None):
        both = "both stage and graph" if m.stage else "neither stage nor graph"
        raise GraphFileError(f"{located.at(path)}: node {name!r} has {both}; exactly one is wanted")
    return Node(
        name=name,
        inputs=_sorted(m.inputs),
        stage=m.stage or "",
        graph=None if m.graph is None else _nested(m.graph, located, (*path, "graph")),
        options=tuple(sorted((k, _freeze(v)) for k, v in m.options.items())),
        loop=loop,
    )


def _nested(m: NestedModel, located: Located, path: tuple[str, ...]) -> Graph:
    return Graph(
        name=m.name,
        inputs=tuple(Port(name, tuple(p.shape), p.dtype, p.optional) for name, p in m.inputs.items()),
        nodes=tuple(_node(n, node, located, (*path, "nodes", n)) for n, node in m.nodes.items()),
        outputs=_pairs(m.outputs),
        doc=m.doc,
    )


def _graph(m: GraphModel, located: Located) -> Graph:
    inner = _nested(m, located, ())
    settings = tuple(sorted((k, v) for k, v in m.settings.model_dump().items() if v is not None))
    return Graph(
        name=inner.name,
        inputs=inner.inputs,
        nodes=inner.nodes,
        outputs=inner.outputs,
        state=_sorted(m.state),
        settings=settings,
        placement=_sorted(m.placement),
        prefill=m.prefill,
        doc=inner.doc,
    )


def dumps(graph: Graph) -> str:
    """YAML text; ``loads`` gives back an equal graph. Raises GraphError for what the form cannot say."""
    return yaml.safe_dump({"version": 1, **_plain(graph)}, sort_keys=False, default_flow_style=None, width=100)


def _plain_port(port: Port) -> dict[str, Any]:
    out: dict[str, Any] = {"shape": list(port.shape), "dtype": port.dtype}
    return {**out, "optional": True} if port.optional else out


def _plain(graph: Graph) -> dict[str, Any]:
    out: dict[str, Any] = {"name": graph.name, "doc": graph.doc, "prefill": graph.prefill}
    out |= {"settings": dict(graph.settings)}
    out["inputs"] = {p.name: _plain_port(p) for p in graph.inputs}
    out["nodes"] = {n.name: _plain_node(n) for n in graph.nodes}
    out |= {"outputs": dict(graph.outputs), "state": dict(graph.state), "placement": dict(graph.placement)}
    return {k: v for k, v in out.items() if v}


def _plain_node(node: Node) -> dict[str, Any]:
    out: dict[str, Any] = {"stage": node.stage, "options": {k: _thaw(v) for k, v in node.options}}
    loop = node.loop
    if isinstance(loop, Repeat):
        out["repeat"] = {"times": loop.times, "carry": dict(loop.carry), "collect": dict(loop.collect)}
    if isinstance(loop, ForEach):
        out["for_each"] = {"over": loop.over, "each": list(loop.each)}
        out["for_each"] |= {"carry": dict(loop.carry), "collect": dict(loop.collect)}
    out["inputs"] = dict(node.inputs)
    if node.graph is not None:
        out["graph"] = _plain(node.graph)
        for key in sorted(out["graph"].keys() - NestedModel.model_fields.keys()):
            raise GraphError(f"node {node.name!r}: its graph has {key} of its own; only the outermost graph has {key}")
    return {k: v for k, v in out.items() if v}


def _thaw(value: Any) -> Any:
    return [_thaw(v) for v in value] if isinstance(value, tuple) else value
