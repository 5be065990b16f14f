"""Stages without models, and the decode step of ``mtp.yaml`` as nouns, for tests of the compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from draftline.compiler.compile import compile_graph, passes
from draftline.compiler.core import IR, Deployment
from draftline.compiler.costs import DEFAULT_COSTS
from draftline.compiler.plan import Plan
from draftline.compiler.verifier import verify
from draftline.graph.core import ForEach, Graph, Node, Port, Repeat, Signature
from draftline.graph.errors import GraphError


def ints(text: str, *, optional: bool = False) -> tuple[Port, ...]:
    """``"token:N recent:N,M"`` to int64 ports."""
    named = (word.split(":") for word in text.split())
    return tuple(
        Port(name, tuple(int(d) if d.isdigit() else d for d in shape.split(",")), "int64", optional)
        for name, shape in named
    )


LIVE = Port("live", ("N",), "bool")


def streams(rows: str, *, optional: bool = False) -> Port:
    return Port("streams", ("N", rows, "H", "D"), "model", optional)


def hidden(*, optional: bool = False) -> Port:
    return Port("hidden", ("N", "H", "D"), "model", optional)


SIGNATURES = {
    "draft.mtp": Signature(
        (*ints("token:N position:N depth:N recent:N,M num_recent:N"), streams("M"), hidden(optional=True)),
        (*ints("token:N"), hidden()),
        options=(("temperature", 0.0),),
    ),
    "pad": Signature(
        (*ints("tail:N"), *ints("drafts:N,K", optional=True), *ints("position:N depth:N")),
        (*ints("window:N,W positions:N,W"), LIVE, *ints("accepted:N")),
    ),
    "verify": Signature(
        (*ints("tokens:N,S positions:N,S pages:N,G"), LIVE),
        (*ints("predicted:N,S"), streams("S", optional=True)),
        per_wave=True,
        packs="positions",
    ),
    "accept.greedy": Signature(
        (*ints("window:N,W predicted:N,S depth:N"), LIVE, *ints("accepted:N")), (LIVE, *ints("accepted:N"))
    ),
    "commit": Signature(
        (*ints("window:N,W predicted:N,W accepted:N depth:N"), streams("W", optional=True)),
        (*ints("tokens:N,M count:N"), streams("M", optional=True)),
    ),
    "prefill": Signature(
        (*ints("tokens:P slots:P"), streams("M")), (*ints("rows:1"), streams("M")), options=(("size", ...),)
    ),
}


def lookup(name: str) -> Any:
    if name not in SIGNATURES:
        raise GraphError(f"unknown stage {name!r}")
    return type("Fake", (), {"signature": SIGNATURES[name]})


def wired(text: str) -> tuple[tuple[str, str], ...]:
    """``"tail=tail drafts=draft.drafts"`` to sorted (port, reference) pairs; ``x`` is short for ``x=x``."""
    pairs = [word.partition("=") for word in text.split()]
    return tuple(sorted((port, ref or port) for port, _, ref in pairs))


CHECK = Graph(
    name="check",
    inputs=(*ints("window:N,W tokens:N,S positions:N,S depth:N pages:N,G"), LIVE, *ints("accepted:N")),
    nodes=(
        Node("verify", wired("tokens positions pages live"), "verify"),
        Node("accept", wired("window predicted=verify.predicted depth live accepted"), "accept.greedy"),
    ),
    outputs=(
        ("predicted", "verify.predicted"),
        ("streams", "verify.streams"),
        ("live", "accept.live"),
        ("accepted", "accept.accepted"),
    ),
)

MTP = Graph(
    name="mtp",
    inputs=(
        *ints("tail:N position:N depth:N recent:N,M num_recent:N pages:N,G"),
        streams("M"),
    ),
    nodes=(
        Node(
            "draft",
            wired("token=tail position depth recent num_recent streams"),
            "draft.mtp",
            loop=Repeat("K", (("token", "token"), ("hidden", "hidden")), (("token", "drafts"),)),
        ),
        Node("pad", wired("tail drafts=draft.drafts position depth"), "pad"),
        Node(
            "check",
            wired(
                "window=pad.window tokens=pad.window positions=pad.positions depth pages live=pad.live"
                " accepted=pad.accepted"
            ),
            graph=CHECK,
            loop=ForEach(
                ("tokens", "positions"),
                (("live", "live"), ("accepted", "accepted")),
                (("predicted", "predicted"), ("streams", "streams")),
            ),
        ),
        Node(
            "commit",
            wired("window=pad.window predicted=check.predicted accepted=check.accepted depth streams=check.streams"),
            "commit",
        ),
    ),
    outputs=(("tokens", "commit.tokens"), ("count", "commit.count"), ("accepted", "check.accepted")),
    state=(("streams", "commit.streams"),),
)

PREFILL = Graph(
    name="prefill",
    inputs=(*ints("tokens:P slots:P"), streams("M")),
    nodes=(Node("fill", wired("tokens slots streams"), "prefill", options=(("size", 3),)),),
    outputs=(("rows", "fill.rows"),),
    state=(("streams", "fill.streams"),),
)


def settings(k: int, **changes: Any) -> dict[str, Any]:
    return {
        "num_speculative_tokens": k,
        "tile": 8,
        "max_num_seqs": 8,
        "max_model_len": 1024,
        "page_size": 64,
        "prefill_tile": 32,
        "max_depth": 40,
        "dtype": "fp32",
        "model_dims": {"H": 2, "D": 16},
        **changes,
    }


def plan_of(k: int, graph: Graph = MTP, **changes: Any) -> Plan:
    return compile_graph(graph, lookup=lookup, **settings(k, **changes))


def ir_after(name: str, k: int = 9, graph: Graph = MTP, **changes: Any) -> IR:
    """The verified IR after the pass ``name``."""
    ir = IR(graph, Deployment.of(**settings(k, **changes)), DEFAULT_COSTS)
    for step in passes(lookup):
        ir = step.run(ir)
        verify(ir, step.name)
        if step.name == name:
            return ir
    raise AssertionError(name)


def with_node(parent: Graph, name: str, **changes: Any) -> Graph:
    """``parent`` with one node changed."""
    return replace(parent, nodes=tuple(replace(n, **changes) if n.name == name else n for n in parent.nodes))
