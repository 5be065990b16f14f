"""Pictures: golden files, and every node and data edge is there."""

from __future__ import annotations

import re

import pytest

from draftline.graph import pictures
from draftline.graph.builder import GraphBuilder
from draftline.graph.yaml import load_graph


@pytest.mark.parametrize("name", ["mtp", "ngram"])
@pytest.mark.parametrize(("form", "suffix"), [("mermaid", "mmd"), ("dot", "dot"), ("text", "txt")])
def test_golden(golden, name, form, suffix):
    golden(f"graph/{name}.{suffix}", getattr(pictures, form)(load_graph(f"{name}.yaml")))


def test_every_edge_is_drawn():
    graph = load_graph("mtp.yaml")
    drawn = set(re.findall(r"^ +(\w+) -- .* --> (\w+)$", pictures.mermaid(graph), re.M))
    dotted = set(re.findall(r'"([\w.:]+)" -> "([\w.:]+)"', pictures.dot(graph)))
    text = pictures.text(graph)
    for node in graph.nodes:
        for port, ref in node.inputs:
            producer = ref.partition(".")[0] if "." in ref else f"in:{ref}"
            assert (producer.replace(":", "_"), node.name) in drawn
            ends = {"check": "check.verify"}
            assert (ends.get(producer, producer), ends.get(node.name, node.name)) in dotted
            assert f"{port} ← {ref}" in text
    assert ("check_verify", "check_accept") in drawn
    assert ("check.verify", "check.accept") in dotted
    assert "draft (draft.mtp) ×K" in text
    assert "check for each chunk" in text


def nested_twice(deepest_is_empty: bool = False):
    deepest, middle, top = GraphBuilder("deepest"), GraphBuilder("middle"), GraphBuilder("top")
    x = deepest.input("x", ["N"], "int64")
    deepest.output(y=x if deepest_is_empty else deepest.stage("s:C", name="u", a=x).y)
    inner = middle.nested(deepest.build(), x=middle.input("x", ["N"], "int64"))
    middle.output(y=middle.stage("s:C", name="w", a=inner.y).y)
    outer = top.nested(middle.build(), x=top.input("x", ["N"], "int64"))
    top.output(y=top.stage("s:C", name="end", a=outer.y).y)
    return top.build()


@pytest.mark.parametrize("deepest_is_empty", [False, True])
def test_dot_edges_end_at_declared_boxes(deepest_is_empty):
    """Graphviz invents a box for an end that is not declared: an edge to a cluster must end inside it."""
    drawn = pictures.dot(nested_twice(deepest_is_empty))
    declared = set(re.findall(r'^ *"([^"]+)" \[', drawn, re.M))
    ends = {end for edge in re.findall(r'"([^"]+)" -> "([^"]+)"', drawn) for end in edge}
    assert ends == declared
    assert drawn.count("{") == drawn.count("}")


def test_mermaid_ids_are_no_reserved_words():
    drawn = pictures.mermaid(nested_twice())
    assert 'end_["end (s:C)"]' in drawn
    assert '-- "a" --> end_\n' in drawn
    assert len(re.findall(r"^ *subgraph ", drawn, re.M)) == len(re.findall(r"^ *end$", drawn, re.M)) == 2


def test_text_boxes_are_closed_and_aligned():
    """Every line of a box has the width of its top."""
    lines = pictures.text(nested_twice()).splitlines()
    open_at: list[tuple[int, int]] = []
    for line in lines:
        for left, right in open_at:
            assert line[left] in "│└", line
            assert line[right] in "│┘", line
        open_at += [(m.start(), m.end() - 1) for m in re.finditer("┌[^┐]*┐", line)]
        open_at = [box for box in open_at if line[box[0]] != "└"]
    assert not open_at
