"""The Python API: build a Graph by naming stages and binding their inputs by keyword.

    from draftline.graph.builder import GraphBuilder
    g = GraphBuilder("example")
    tail = g.input("tail", ["N"], "int64")
    draft = g.stage("draft.mtp", repeat="K", carry={"token": "token"}, collect={"token": "drafts"}, token=tail)
    g.output(drafts=draft.drafts)
    graph = g.build()

Knows: names. Does not know: whether the result keeps the rules; ``draftline.graph.verify.verify`` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from .core import DTYPES, Dim, ForEach, Graph, Node, Port, Repeat
from .errors import GraphError, nearest
from .schema import SettingsModel


@dataclass(frozen=True)
class Value:
    """A value in a graph under construction: an input, or an output of a node. Bind it by keyword."""

    ref: str


@dataclass(frozen=True)
class Outputs:
    """A node's outputs: ``draft.drafts`` or ``draft["drafts"]`` is the Value of that output."""

    node: str

    def __getattr__(self, port: str) -> Value:
        if port.startswith("__"):
            raise AttributeError(port)
        return Value(f"{self.node}.{port}")

    def __getitem__(self, port: str) -> Value:
        return Value(f"{self.node}.{port}")


Names = Mapping[str, str]


class GraphBuilder:
    """Collects inputs, nodes, outputs and state; ``build`` gives the immutable Graph."""

    def __init__(self, name: str, *, prefill: str = "", doc: str = "") -> None:
        self._name, self._prefill, self._doc = name, prefill, doc
        self._inputs: list[Port] = []
        self._nodes: list[Node] = []
        self._outputs: list[tuple[str, str]] = []
        self._state: list[tuple[str, str]] = []
        self._settings: dict[str, Any] = {}
        self._placement: dict[str, str] = {}

    def input(self, name: str, shape: Sequence[Dim], dtype: str, *, optional: bool = False) -> Value:
        """A graph input, filled by whoever runs the graph. Raises GraphError for an unknown dtype."""
        if dtype not in DTYPES:
            raise GraphError(f"input {name!r}: unknown dtype {dtype!r}{nearest(dtype, DTYPES)}")
        if isinstance(shape, str):
            raise GraphError(f"input {name!r}: shape {shape!r} is one string; a list such as ['N', 'K'] is wanted")
        self._inputs.append(Port(name, tuple(shape), dtype, optional))
        return Value(name)

    def stage(
        self,
        stage: str,
        /,
        *,
        name: str = "",
        repeat: Dim | None = None,
        carry: Names | None = None,
        collect: Names | None = None,
        options: Mapping[str, Any] | None = None,
        **inputs: Value,
    ) -> Outputs:
        """A stage by registry name or ``package.module:Class``; the node is called ``name`` or the first part
        of the stage's. ``repeat`` with ``carry`` (input port → output port) and ``collect`` (output port → new
        name) runs it that many times."""
        loop = _repeat(stage, repeat, carry, collect)
        return self._add(name or _short(stage), inputs, stage=stage, options=options, loop=loop)

    def nested(
        self,
        graph: Graph,
        /,
        *,
        name: str = "",
        repeat: Dim | None = None,
        carry: Names | None = None,
        collect: Names | None = None,
        **inputs: Value,
    ) -> Outputs:
        """Another graph as one node; ``repeat``, ``carry`` and ``collect`` as for a stage."""
        return self._add(name or graph.name, inputs, graph=graph, loop=_repeat(graph.name, repeat, carry, collect))

    def for_each_chunk(
        self,
        body: Graph | str,
        /,
        *,
        each: Sequence[str],
        carry: Names | None = None,
        collect: Names | None = None,
        name: str = "",
        options: Mapping[str, Any] | None = None,
        **inputs: Value,
    ) -> Outputs:
        """A nested graph, or a stage by name, run once per chunk of S window columns; ``each`` inputs arrive cut."""
        loop = ForEach(tuple(each), _pairs(carry), _pairs(collect))
        if isinstance(body, str):
            return self._add(name or _short(body), inputs, stage=body, options=options, loop=loop)
        return self._add(name or body.name, inputs, graph=body, options=options, loop=loop)

    def output(self, **values: Value) -> None:
        """Graph outputs by name."""
        self._outputs += [(name, _ref("output", name, value)) for name, value in values.items()]

    def state(self, **values: Value) -> None:
        """``state(streams=x)``: x is the input ``streams`` of the next step."""
        self._state += [(name, _ref("state", name, value)) for name, value in values.items()]

    def settings(self, **values: Any) -> None:
        """Deployment settings, as in a graph file. Raises GraphError for an unknown one or a wrong value."""
        for name in values:
            if name not in SettingsModel.model_fields:
                raise GraphError(f"unknown setting {name!r}{nearest(name, SettingsModel.model_fields)}")
        try:
            given = SettingsModel.model_validate(values).model_dump(exclude_none=True)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise GraphError(f"setting {wrong['loc'][0]!r}: {wrong['msg']}, not {wrong['input']!r}") from None
        self._settings |= given

    def place(self, **devices: str) -> None:
        """``place(draft="cpu:0")``: node → device."""
        self._placement |= devices

    def build(self) -> Graph:
        """The graph as an immutable value."""
        return Graph(
            name=self._name,
            inputs=tuple(self._inputs),
            nodes=tuple(self._nodes),
            outputs=tuple(self._outputs),
            state=tuple(sorted(self._state)),
            settings=tuple(sorted(self._settings.items())),
            placement=tuple(sorted(self._placement.items())),
            prefill=self._prefill,
            doc=self._doc,
        )

    def _add(
        self,
        name: str,
        inputs: Mapping[str, Value],
        *,
        stage: str = "",
        graph: Graph | None = None,
        options: Mapping[str, Any] | None = None,
        loop: Repeat | ForEach | None = None,
    ) -> Outputs:
        bound = [(port, _ref(f"node {name!r}, port", port, value)) for port, value in inputs.items()]
        self._nodes.append(
            Node(
                name=name,
                inputs=tuple(sorted(bound)),
                stage=stage,
                graph=graph,
                options=tuple(sorted((k, _freeze(v)) for k, v in (options or {}).items())),
                loop=loop,
            )
        )
        return Outputs(name)


def _short(stage: str) -> str:
    """``draft`` of ``draft.mtp`` and of ``draft.mine:Class``."""
    return stage.split(":")[0].split(".")[0]


def _repeat(what: str, times: Dim | None, carry: Names | None, collect: Names | None) -> Repeat | None:
    if times is not None:
        return Repeat(times, _pairs(carry), _pairs(collect))
    if carry or collect:
        raise GraphError(f"{what!r}: carry and collect belong to a loop; give repeat as well")
    return None


def _pairs(names: Names | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((names or {}).items()))


def _ref(kind: str, name: str, value: Any) -> str:
    if not isinstance(value, Value):
        raise GraphError(
            f"{kind} {name!r}: is bound to a {type(value).__name__}; bind a graph input or an output of a node,"
            " such as draft.drafts"
        )
    return value.ref


def _freeze(value: Any) -> Any:
    """Lists become tuples: a graph is a value that hashes, and a file's lists arrive as tuples too."""
    return tuple(_freeze(v) for v in value) if isinstance(value, list | tuple) else value
