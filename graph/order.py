"""Order of nodes. Knows: who feeds whom. Does not know: types, stages. networkx stays in here."""

from __future__ import annotations

import networkx as nx

from .core import Graph, Node
from .errors import GraphError


def _dependencies(graph: Graph) -> nx.DiGraph[str]:
    """Edges producer → consumer between the graph's own nodes; unknown producers are left out."""
    edges: nx.DiGraph[str] = nx.DiGraph()
    names = {node.name for node in graph.nodes}
    edges.add_nodes_from(node.name for node in graph.nodes)
    for node in graph.nodes:
        for _, ref in node.inputs:
            producer, dot, _ = ref.partition(".")
            if dot and producer in names:
                edges.add_edge(producer, node.name)
    return edges


def topological(graph: Graph, path: str = "") -> tuple[Node, ...]:
    """Nodes so that producers come before consumers; among equals, in order of declaration.

    Raises GraphError (rule ``cycle``) that spells the cycle out, nodes named from ``path`` on.
    """
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    edges = _dependencies(graph)
    try:
        order = list(nx.lexicographical_topological_sort(edges, key=place.__getitem__))
    except nx.NetworkXUnfeasible:
        ring = [a for a, _ in nx.find_cycle(edges)]
        shown = " -> ".join(path + name for name in [*ring, ring[0]])
        closing = graph.nodes[place[ring[0]]]
        port = next(port for port, ref in closing.inputs if ref.partition(".")[0] == ring[-1] and "." in ref)
        raise GraphError(
            f"node {path + ring[0]!r}, port {port!r}: nodes feed each other in a cycle: {shown};"
            " a value of the step before comes in through state",
            rule="cycle",
        ) from None
    by_name = {node.name: node for node in graph.nodes}
    return tuple(by_name[name] for name in order)


def alive(graph: Graph) -> set[str]:
    """Names of nodes that an output or a state depends on."""
    edges = _dependencies(graph)
    roots = {ref.partition(".")[0] for _, ref in (*graph.outputs, *graph.state)} & set(edges)
    return roots.union(*(nx.ancestors(edges, root) for root in roots))
