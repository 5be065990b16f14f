"""Each rule of a graph trips, and its message names node and port."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from draftline.graph.core import ForEach, Graph, Node, Port, Repeat, Signature
from draftline.graph.errors import GraphError
from draftline.graph.verify import RULES, infer, mapping_lookup, verify
from draftline.graph.yaml import load_graph, packaged
from draftline.stages.registry import signature

N = Port("x", ("N",), "int64")
TABLE = {
    "one": Signature((Port("a", ("R",), "int64"),), (Port("y", ("R",), "int64"),)),
    "two": Signature(
        (Port("a", ("R",), "int64"), Port("b", ("R", "C"), "int64", optional=True)), (Port("y", ("R",), "int64"),)
    ),
    "wide": Signature((Port("a", ("R", "C"), "int64"),), (Port("y", ("R", "C"), "int64"),)),
    "floats": Signature((Port("a", ("R",), "float32"),), (Port("y", ("R",), "float32"),)),
    "square": Signature((Port("a", ("R",), "int64"), Port("b", ("R",), "int64")), (Port("y", ("R",), "int64"),)),
    "needy": Signature((Port("a", ("R",), "int64"),), (Port("y", ("R",), "int64"),), options=(("size", ...),)),
    "sized": Signature((Port("a", ("R",), "int64"),), (Port("y", ("R",), "int64"),), options=(("size", 4),)),
    "pick": Signature((Port("a", ("R",), "int64"),), (Port("y", ("R", "K"), "int64"), Port("z", (2,), "bool"))),
}
LOOKUP = mapping_lookup(TABLE)
WINDOW = Port("w", ("N", "W"), "int64")
TABLE["chunk"] = Signature(
    (Port("a", ("R", "S"), "int64"), Port("b", ("R", "S"), "int64", optional=True), Port("c", ("R",), "int64")),
    (Port("y", ("R", "S"), "int64"), Port("z", ("R", "S"), "int64"), Port("c", ("R",), "int64")),
)


def node(name: str, stage: str = "one", loop=None, options=(), **inputs: str) -> Node:
    return Node(name, tuple(sorted(inputs.items())), stage=stage, options=options, loop=loop)


def graph(*nodes: Node, output: str = "", state=(), inputs=(N,), **more) -> Graph:
    return Graph("g", inputs, nodes, (("out", output or f"{nodes[-1].name}.y"),), state=tuple(state), **more)


def chunked(each=("a",), carry=(("c", "c"),), collect=(("y", "y"),)) -> Graph:
    """A chunk loop over a stage; with these defaults it keeps all rules."""
    return graph(node("n", "chunk", a="w", c="x", loop=ForEach(each, carry, collect)), inputs=(N, WINDOW))


INNER = graph(node("deep", a="x"), node("deaf", a="deep.q"))
CASES: list[tuple[str, Graph, str]] = [
    ("unique-names", graph(node("a", a="x"), node("a", a="x")), "node 'a' is declared twice"),
    ("unique-names", graph(node("a", a="x"), inputs=(N, N)), "input 'x' is declared twice"),
    (
        "unique-names",
        graph(node("a", a="x"), state=(("x", "a.y"), ("x", "a.y"))),
        "state 'x' is declared twice",
    ),
    ("spelling", graph(node("a.b", a="x"), output="x"), "node 'a.b': a name of letters, digits and _ is wanted"),
    ("spelling", graph(node("a", a="x"), inputs=(N, Port("p q", ("N",), "int64"))), "input 'p q': a name of"),
    ("spelling", replace(graph(node("a", a="x")), name="g-1"), "graph 'g-1': a name of letters"),
    ("one-body", graph(Node("a", (("a", "x"),))), "node 'a': has neither stage nor graph"),
    ("one-body", graph(Node("a", (), stage="one", graph=INNER)), "node 'a': has both stage and graph"),
    ("unknown-stage", graph(node("a", "onee", a="x")), "node 'a': unknown stage 'onee'; did you mean 'one'"),
    ("nested", graph(Node("n", (("x", "x"),), graph=INNER)), "node 'n.deaf', port 'a': 'deep.q': node 'deep' has no"),
    (
        "nested",
        graph(Node("n", (("x", "x"),), graph=graph(node("a", a="x"), state=(("x", "a.y"),))), output="n.out"),
        "node 'n': its graph has state of its own; only the outermost graph has state",
    ),
    (
        "nested",
        graph(Node("n", (("x", "x"),), graph=replace(graph(node("a", a="x")), prefill="p.yaml")), output="n.out"),
        "node 'n': its graph has prefill of its own",
    ),
    ("options", graph(node("a", a="x", options=(("sise", 1),))), "node 'a': unknown option 'sise'; known: none"),
    ("options", graph(node("a", "needy", a="x", options=(("sise", 1),))), "unknown option 'sise'; did you mean 'size'"),
    (
        "options",
        graph(node("a", "sized", a="x", options=(("size", "4"),))),
        "option 'size' is '4'; it wants a value of",
    ),
    (
        "options",
        graph(node("a", "sized", a="x", options=(("size", True),))),
        "'size' is True; it wants a value of type int",
    ),
    ("options", graph(node("a", "needy", a="x")), "node 'a': option 'size' is required"),
    (
        "known-ports",
        graph(node("a", "two", a="x", bb="x")),
        "node 'a', port 'bb': the stage has no such input; did you",
    ),
    ("fed-once", graph(Node("a", (("a", "x"), ("a", "x")), stage="one")), "node 'a', port 'a': is fed twice, by x, x"),
    ("connected", graph(node("a", "square", a="x")), "node 'a', port 'b': is not connected; it wants [R] int64"),
    ("loops", graph(node("a", a="x", loop=Repeat("K", ()))), "node 'a': repeat has no carry"),
    ("loops", graph(node("a", a="x", loop=Repeat("K", (("q", "y"),)))), "node 'a', port 'q': repeat carries to an"),
    ("loops", graph(node("a", a="x", loop=Repeat("K", (("a", "q"),)))), "node 'a', port 'q': repeat carries an output"),
    ("loops", graph(node("a", a="x", loop=Repeat(2, (("a", "y"),), (("q", "r"),)))), "port 'q': repeat collects an"),
    ("loops", graph(node("a", a="x", loop=Repeat(2, (("a", "y"),), (("y", "y"),)))), "the collected name hides"),
    ("loops", chunked(collect=(("y", "c"),)), "node 'n', port 'c': the collected name hides the output"),
    ("loops", chunked(collect=(("y", "v"), ("z", "v"))), "node 'n', port 'v': for_each collects two outputs under"),
    ("loops", chunked(carry=(("c", "c"), ("c", "c"))), "node 'n', port 'c': for_each carries two outputs to this"),
    ("loops", chunked(each=("a", "b")), "node 'n', port 'b': for_each cuts an input that is not connected"),
    ("loops", chunked(each=("a", "a")), "node 'n', port 'a': for_each cuts this input twice"),
    ("loops", chunked(carry=(("a", "y"),)), "node 'n', port 'a': for_each both cuts this input and carries to it"),
    ("loops", graph(node("a", a="x", loop=ForEach(("q",)))), "node 'a', port 'q': for_each cuts an input that does"),
    ("references", graph(node("a", a="xx")), "node 'a', port 'a': 'xx' is no input of the graph; did you mean 'x'"),
    (
        "references",
        graph(node("abc", a="x"), node("b", a="abd.y")),
        "node 'b', port 'a': 'abd.y': there is no node 'abd'",
    ),
    ("references", graph(node("a", a="x"), output="a.z"), "output 'out': 'a.z': node 'a' has no output 'z'"),
    ("references", graph(node("a", a="x"), state=(("x", "b.y"),)), "state 'x': 'b.y': there is no node 'b'"),
    (
        "cycle",
        graph(node("a", a="b.y"), node("b", a="a.y")),
        "node 'a', port 'a': nodes feed each other in a cycle: a -> b -> a;",
    ),
    (
        "nested",
        graph(Node("n", (("x", "x"),), graph=graph(node("a", a="b.y"), node("b", a="a.y"))), output="n.out"),
        "node 'n.a', port 'a': nodes feed each other in a cycle: n.a -> n.b -> n.a;",
    ),
    ("types", graph(node("a", "wide", a="x")), "node 'a', port 'a': wants [R, C], x is [N]: another number of dim"),
    ("types", graph(node("a", "floats", a="x")), "node 'a', port 'a': wants dtype float32, x is int64"),
    (
        "types",
        graph(node("a", "square", a="x", b="w"), inputs=(N, Port("w", ("M",), "int64"))),
        "node 'a', port 'b': wants [R], w is [M]: R is N here, not M",
    ),
    (
        "types",
        graph(node("a", a="x", loop=ForEach(("a",)))),
        "node 'a', port 'a': for_each cuts [N, W, …] along axis 1",
    ),
    (
        "types",
        graph(node("a", "pick", a="x", loop=Repeat("K", (("a", "z"),)))),
        "node 'a', port 'a': wants dtype int64, carried output 'z' is bool",
    ),
    ("types", graph(node("a", a="x"), state=(("q", "a.y"),)), "state 'q': there is no input of that name"),
    ("types", graph(node("a", "pick", a="x"), state=(("x", "a.z"),)), "the input is ['N'] int64, a.z is [2] bool"),
    ("dead-stage", graph(node("dead", a="x"), node("b", a="x")), "node 'dead': no output and no state depends on it"),
    ("placement", graph(node("a", a="x"), placement=(("b", "cpu:0"),)), "placement: there is no node 'b'"),
]


@pytest.mark.parametrize(("rule", "broken", "says"), CASES, ids=[f"{i}-{r}" for i, (r, _, _) in enumerate(CASES)])
def test_rule_trips_and_names_node_and_port(rule, broken, says):
    with pytest.raises(GraphError, match=re.escape(says)) as caught:
        verify(broken, LOOKUP)
    assert caught.value.rule == rule or rule == "nested"
    assert "\n" not in str(caught.value)


def test_every_rule_is_tripped_above():
    assert {rule for rule, _, _ in CASES} == {rule.name for rule in RULES}
    assert all(rule.says for rule in RULES)


@pytest.mark.parametrize("name", packaged())
def test_packaged_graphs_keep_all_rules(name):
    verify(load_graph(name), signature)


def test_types_of_every_value_of_mtp():
    types = {ref: (p.shape, p.dtype) for ref, p in infer(load_graph("mtp.yaml"), signature).items()}
    assert types["draft.drafts"] == (("N", "K"), "int64")
    assert types["draft.token"] == (("N",), "int64")
    assert types["pad.window"] == (("N", "W"), "int64")
    assert types["check.predicted"] == (("N", "W"), "int64")
    assert types["check.streams"] == (("N", "W", "H", "D"), "model")
    assert types["check.live"] == (("N",), "bool")
    assert types["commit.streams"] == types["streams"] == (("N", "M", "H", "D"), "model")


def test_a_chunk_loop_may_keep_the_name_of_what_it_collects():
    assert infer(chunked(), LOOKUP)["n.y"].shape == ("N", "W")
    assert infer(chunked(collect=(("y", "all"),)), LOOKUP)["n.all"].shape == ("N", "W")


def test_a_nested_graph_is_verified_once_however_deep():
    """Each level would otherwise multiply the work; the count of look-ups tells without a clock."""

    def nested(depth: int) -> Graph:
        if depth == 0:
            return graph(node("a", a="x"))
        return graph(Node("n", (("x", "x"),), graph=nested(depth - 1)), output="n.out")

    def count(depth: int) -> int:
        calls = []
        verify(nested(depth), lambda name: calls.append(name) or TABLE[name])
        return len(calls)

    assert count(40) == count(1) > 0
    deep = graph(node("a", a="x", b="x"))
    for _ in range(3):
        deep = graph(Node("n", (("x", "x"),), graph=deep), output="n.out")
    with pytest.raises(GraphError, match=r"node 'n\.n\.n\.a', port 'b': the stage has no such input"):
        verify(deep, LOOKUP)


def test_symbols_of_a_signature_are_local():
    """Two nodes use the symbol R for different dimensions."""
    two = graph(node("a", a="x"), node("b", a="w"), inputs=(N, Port("w", ("M",), "int64")))
    types = infer(replace(two, outputs=(("p", "a.y"), ("q", "b.y"))), LOOKUP)
    assert (types["a.y"].shape, types["b.y"].shape) == (("N",), ("M",))


def test_an_optional_carried_input_may_start_empty():
    sig = Signature(
        (Port("a", ("R",), "int64"), Port("h", ("R",), "int64", optional=True)),
        (Port("y", ("R",), "int64"), Port("h", ("R",), "int64")),
    )
    loop = Repeat("K", (("a", "y"), ("h", "h")), (("y", "ys"),))
    types = infer(graph(node("a", "s", a="x", loop=loop), output="a.ys"), mapping_lookup({"s": sig}))
    assert types["a.ys"].shape == ("N", "K")


def test_the_docs_list_every_rule():
    text = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text("utf-8")
    for rule in RULES:
        assert f"| `{rule.name}` | {rule.says} |" in text
