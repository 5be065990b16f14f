"""Pictures: golden files, and every node and data edge is there."""

from __future__ import annotations

import re

import pytest

from draftline.graph import pictures
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
