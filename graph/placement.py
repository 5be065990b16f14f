"""Names in ``placement``: a node's path, or its last part where that is enough.

Knows: paths of nodes in nested graphs. Does not know: devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftline.graph.core import Graph
from draftline.graph.errors import nearest


def paths(graph: Graph, prefix: str = "") -> Iterator[str]:
    """Yield the path of every node, those of nested graphs too: ``check``, ``check.verify``."""
    for node in graph.nodes:
        yield prefix + node.name
        if node.graph is not None:
            yield from paths(node.graph, f"{prefix}{node.name}.")


def find(name: str, known: Sequence[str]) -> tuple[str, str]:
    """Return (path, "") of the node that ``name`` means, or ("", what is wrong with it)."""
    if name in known:
        return name, ""
    ends = [path for path in known if path.endswith("." + name)]
    if len(ends) == 1:
        return ends[0], ""
    if ends:
        return "", f"{name!r} may be any of {', '.join(ends)}; say which"
    return "", f"there is no node {name!r}{nearest(name, known)}"
