"""A graph whose drafter is told nothing of grammars and drafts what it will. Helper for tests; no tests in here."""

from __future__ import annotations

from dataclasses import replace

from draftline.graph.core import Graph
from draftline.graph.yaml import load_graph


def untold(name: str = "mtp.yaml") -> Graph:
    """The packaged graph without inputs ``sampling`` and ``history`` of its draft node."""
    graph = load_graph(name)
    kept = [tuple(i for i in n.inputs if n.name != "draft" or i[0] not in ("sampling", "history")) for n in graph.nodes]
    return replace(graph, nodes=tuple(replace(n, inputs=i) for n, i in zip(graph.nodes, kept, strict=True)))
