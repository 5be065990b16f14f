"""The rules that a graph keeps, as a table, and the type of every value.

Knows: ports, symbols, loops. Does not know: what a stage computes, numbers behind symbols.

``verify`` raises the first broken rule; every message names the node and the port and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from . import placement
from .core import Graph, Node, Port, Signature
from .errors import GraphError, nearest
from .loops import loop_problems
from .order import alive, topological
from .schema import NAME, NestedModel
from .types import check_node_types, node_outputs

__all__ = ["RULES", "Lookup", "Rule", "infer", "mapping_lookup", "topological", "verify"]

Lookup = Callable[[str], Any]
"""Stage name → Signature, or a class that has one as ``signature``. Raises GraphError for unknown names."""


def mapping_lookup(table: Mapping[str, Signature]) -> Lookup:
    """A lookup over a plain table."""

    def lookup(name: str) -> Signature:
        if name not in table:
            raise GraphError(f"unknown stage {name!r}{nearest(name, table)}", rule="unknown-stage")
        return table[name]

    return lookup


@dataclass(frozen=True)
class Scope:
    """A graph under verification. ``path`` is '' at the top, else 'check.' and so on."""

    graph: Graph
    path: str
    lookup: Lookup
    nested: dict[str, Signature] = field(default_factory=dict)
    """Signatures of nested graphs by node name: each graph is verified once, however deep it is."""

    def signature(self, node: Node) -> Signature:
        """The node's signature: its stage's, or the nested graph's inputs and outputs.

        Raises GraphError for a nested graph that breaks a rule.
        """
        if node.graph is None:
            found = self.lookup(node.stage)
            return found if isinstance(found, Signature) else found.signature
        if node.name not in self.nested:
            inner = infer(node.graph, self.lookup, f"{self.path}{node.name}.")
            outputs = tuple(Port(n, inner[r].shape, inner[r].dtype) for n, r in node.graph.outputs)
            self.nested[node.name] = Signature(node.graph.inputs, outputs)
        return self.nested[node.name]

    def at(self, node: Node, port: str = "") -> str:
        """``node 'check.accept', port 'live'``."""
        return f"node {self.path + node.name!r}" + (f", port {port!r}" if port else "")


Messages = Iterator[str]


def _unique_names(s: Scope) -> Messages:
    for kind, names in _declared(s.graph):
        for name in sorted({n for n in names if names.count(n) > 1}):
            yield f"graph {s.path + s.graph.name!r}: {kind} {name!r} is declared twice; give each its own name"


def _spelling(s: Scope) -> Messages:
    for kind, names in (("graph", [s.graph.name]), *_declared(s.graph)):
        for name in names:
            if not re.fullmatch(NAME, name):
                where = f"graph {s.path + s.graph.name!r}: {kind} {name!r}"
                yield f"{where}: a name of letters, digits and _ is wanted; a dot separates node and output"


def _declared(graph: Graph) -> tuple[tuple[str, list[str]], ...]:
    """Kind and names of all that a graph declares."""
    return (
        ("node", [n.name for n in graph.nodes]),
        ("input", [p.name for p in graph.inputs]),
        ("output", [n for n, _ in graph.outputs]),
        ("state", [n for n, _ in graph.state]),
    )


def _one_body(s: Scope) -> Messages:
    for node in s.graph.nodes:
        if bool(node.stage) == (node.graph is not None):
            has = "both stage and graph" if node.stage else "neither stage nor graph"
            yield f"{s.at(node)}: has {has}; exactly one is wanted"


def _known_stage(s: Scope) -> Messages:
    for node in s.graph.nodes:
        if node.graph is None:
            try:
                s.lookup(node.stage)
            except GraphError as error:
                yield f"{s.at(node)}: {error}"


def _options(s: Scope) -> Messages:
    for node in s.graph.nodes:
        known = {} if node.graph is not None else dict(s.signature(node).options)
        for option, value in node.options:
            if option not in known:
                yield f"{s.at(node)}: unknown option {option!r}{nearest(option, known)}"
            elif not _fits(value, known[option]):
                wanted = f"{type(known[option]).__name__}, such as {known[option]!r}"
                yield f"{s.at(node)}: option {option!r} is {value!r}; it wants a value of type {wanted}"
        given = dict(node.options)
        for option, default in known.items():
            if default is ... and option not in given:
                yield f"{s.at(node)}: option {option!r} is required"


def _fits(value: Any, default: Any) -> bool:
    """Whether an option's value has its default's type; a default that is required or None says nothing."""
    if default is ... or default is None:
        return True
    if isinstance(default, float) and isinstance(value, int):
        return not isinstance(value, bool)
    return type(value) is type(default)


def _known_ports(s: Scope) -> Messages:
    for node in s.graph.nodes:
        known = [p.name for p in s.signature(node).inputs]
        for port, _ in node.inputs:
            if port not in known:
                yield f"{s.at(node, port)}: the stage has no such input{nearest(port, known)}"


def _fed_once(s: Scope) -> Messages:
    for node in s.graph.nodes:
        ports = [p for p, _ in node.inputs]
        for port in sorted({p for p in ports if ports.count(p) > 1}):
            refs = ", ".join(r for p, r in node.inputs if p == port)
            yield f"{s.at(node, port)}: is fed twice, by {refs}; connect one"


def _connected(s: Scope) -> Messages:
    for node in s.graph.nodes:
        fed = {p for p, _ in node.inputs}
        for port in s.signature(node).inputs:
            if port.name not in fed and not port.optional:
                shape = ", ".join(map(str, port.shape))
                yield f"{s.at(node, port.name)}: is not connected; it wants [{shape}] {port.dtype}"


def _loops(s: Scope) -> Messages:
    for node in s.graph.nodes:
        if node.loop is not None:
            for port, problem in loop_problems(node, s.signature(node)):
                yield f"{s.at(node, port)}: {problem}"


def _references(s: Scope) -> Messages:
    own = {p.name for p in s.graph.inputs}
    outputs = {n.name: set(node_outputs(n, s.signature(n))) for n in s.graph.nodes}

    def wrong(ref: str) -> str | None:
        producer, dot, port = ref.partition(".")
        if not dot:
            known = [*own, *(f"{n}.{o}" for n, ports in outputs.items() for o in ports)]
            return None if ref in own else f"{ref!r} is no input of the graph{nearest(ref, known)}"
        if producer not in outputs:
            return f"{ref!r}: there is no node {producer!r}{nearest(producer, outputs)}"
        if port not in outputs[producer]:
            return f"{ref!r}: node {producer!r} has no output {port!r}{nearest(port, outputs[producer])}"
        return None

    for node in s.graph.nodes:
        for port, ref in node.inputs:
            if problem := wrong(ref):
                yield f"{s.at(node, port)}: {problem}"
    for kind, pairs in (("output", s.graph.outputs), ("state", s.graph.state)):
        for name, ref in pairs:
            if problem := wrong(ref):
                yield f"graph {s.path + s.graph.name!r}, {kind} {name!r}: {problem}"


def _acyclic(s: Scope) -> Messages:
    try:
        topological(s.graph, s.path)
    except GraphError as error:
        yield str(error)


def _nested(s: Scope) -> Messages:
    for node in s.graph.nodes:
        if node.graph is not None:
            s.signature(node)  # raises what is wrong inside, with its own rule
            for key in (f.name for f in fields(Graph) if f.name not in NestedModel.model_fields):
                if getattr(node.graph, key):
                    yield f"{s.at(node)}: its graph has {key} of its own; only the outermost graph has {key}"


def _types(s: Scope) -> Messages:
    known: dict[str, Port] = {p.name: p for p in s.graph.inputs}
    for node in topological(s.graph):
        outputs, problems = check_node_types(node, s.signature(node), known)
        for port, problem in problems:
            yield f"{s.at(node, port)}: {problem}"
        known |= {f"{node.name}.{name}": port for name, port in outputs.items()}
    for name, ref in s.graph.state:
        target = next((p for p in s.graph.inputs if p.name == name), None)
        where = f"graph {s.path + s.graph.name!r}, state {name!r}"
        if target is None:
            yield f"{where}: there is no input of that name{nearest(name, [p.name for p in s.graph.inputs])}"
        elif (target.shape, target.dtype) != (known[ref].shape, known[ref].dtype):
            yield (
                f"{where}: the input is {list(target.shape)} {target.dtype}, {ref} is"
                f" {list(known[ref].shape)} {known[ref].dtype}; the two must be the same"
            )


def _dead(s: Scope) -> Messages:
    living = alive(s.graph)
    for node in s.graph.nodes:
        if node.name not in living:
            yield f"{s.at(node)}: no output and no state depends on it; connect it or leave it out"


def _placed(s: Scope) -> Messages:
    known = list(placement.paths(s.graph))
    meant: dict[str, str] = {}
    for name, _ in s.graph.placement:
        path, wrong = placement.find(name, known)
        if path in meant and path:
            wrong = f"{meant[path]!r} and {name!r} are the same node"
        meant[path] = name
        if wrong:
            yield f"graph {s.path + s.graph.name!r}, placement: {wrong}"


@dataclass(frozen=True)
class Rule:
    """A rule's name, what it says in one line, and how to find who breaks it."""

    name: str
    says: str
    broken: Callable[[Scope], Messages]


RULES: tuple[Rule, ...] = (
    Rule("unique-names", "nodes, inputs, outputs and states have names of their own", _unique_names),
    Rule("spelling", "names are made of letters, digits and _", _spelling),
    Rule("one-body", "a node has a stage or a nested graph, not both", _one_body),
    Rule("unknown-stage", "every stage name is known", _known_stage),
    Rule("nested", "nested graphs keep all rules and have no state or settings of their own", _nested),
    Rule("options", "options exist, and required ones are given", _options),
    Rule("known-ports", "only inputs that the stage has are connected", _known_ports),
    Rule("fed-once", "no input is fed twice", _fed_once),
    Rule("connected", "every input that is not optional is connected", _connected),
    Rule("loops", "loops carry, cut and collect ports that exist, each once; repeat carries something", _loops),
    Rule("references", "every reference names an input, or a node and its output", _references),
    Rule("cycle", "nodes do not feed each other in a cycle", _acyclic),
    Rule("types", "shapes (symbols unified) and dtypes agree along every connection", _types),
    Rule("dead-stage", "an output or a state depends on every node", _dead),
    Rule("placement", "placement names nodes", _placed),
)


def verify(graph: Graph, lookup: Lookup, path: str = "") -> None:
    """Raise GraphError with the first broken rule's message and name; return if there is none."""
    _verified(graph, lookup, path)


def _verified(graph: Graph, lookup: Lookup, path: str) -> Scope:
    scope = Scope(graph, path, lookup)
    for rule in RULES:
        for message in rule.broken(scope):
            raise GraphError(message, rule=rule.name)
    return scope


def infer(graph: Graph, lookup: Lookup, path: str = "") -> Mapping[str, Port]:
    """Type of every reference: inputs by name, outputs as ``node.port``, collected ones under their new name.

    Raises GraphError as ``verify`` does.
    """
    scope = _verified(graph, lookup, path)
    known: dict[str, Port] = {p.name: p for p in graph.inputs}
    for node in topological(graph):
        outputs, _ = check_node_types(node, scope.signature(node), known)
        known |= {f"{node.name}.{name}": port for name, port in outputs.items()}
    return known
