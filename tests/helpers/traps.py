"""Stages that do harm when a file says so. Helper for tests; no tests in here.

Used in a graph as ``traps:Draft`` and so on, with ``flag``: a path. When that file exists, the stage removes it and
does what it says; so it happens once. ``poison`` ≥ 0: do ``harm`` whenever that token is among the inputs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftline.graph.core import Graph, Node
from draftline.graph.yaml import load_graph
from draftline.stages.commit import Commit as RealCommit
from draftline.stages.draft_mtp import DraftMtp
from draftline.stages.prefill import PrefillTarget
from draftline.stages.verify import Verify as RealVerify

HARMS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "abort": os.abort,
    "exit": lambda: sys.exit(3),
    "oom": lambda: os._exit(137),
    "hang": lambda: time.sleep(3600),
    "raise": lambda: 1 // 0,
}


def trap(base: type[Any]) -> type[Any]:
    """A stage class with a trap in front."""

    class Trapped(base):
        signature = replace(base.signature, options=(("flag", ""), ("harm", "raise"), ("poison", -1)))

        def __init__(self, context, flag: str = "", harm: str = "raise", poison: int = -1) -> None:
            super().__init__(context)
            self._flag, self._harm, self._poison = flag, harm, poison

        def __call__(self, call, inputs, outputs) -> None:
            if self._flag and os.path.exists(self._flag):
                harm = Path(self._flag).read_text()
                os.unlink(self._flag)
                if harm.startswith("wait "):  # … for a file
                    while not os.path.exists(harm[5:]):
                        time.sleep(0.01)
                else:
                    HARMS[harm]()
            if self._poison >= 0 and any((inputs[k] == self._poison).any() for k in ("token", "tokens") if k in inputs):
                if self._harm.startswith("say "):
                    raise RuntimeError(Path(self._harm[4:]).read_text("utf-8", "surrogatepass"))
                HARMS[self._harm]()
            super().__call__(call, inputs, outputs)

    return Trapped


Draft, Verify, Commit, Prefill = (trap(base) for base in (DraftMtp, RealVerify, RealCommit, PrefillTarget))

PLACES = {"draft": "Draft", "verify": "Verify", "commit": "Commit"}


def _set(node: Node, place: str, **options: Any) -> Node:
    if node.graph is not None:
        return replace(
            node, graph=replace(node.graph, nodes=tuple(_set(n, place, **options) for n in node.graph.nodes))
        )
    if node.name != place:
        return node
    return replace(node, stage=f"traps:{PLACES[place]}", options=tuple(sorted(options.items())))


def with_trap(graph: Graph, place: str, **options: Any) -> Graph:
    """``graph`` with the stage of node ``place`` trapped."""
    return replace(graph, nodes=tuple(_set(node, place, **options) for node in graph.nodes))


def prefill_with_trap(**options: Any) -> Graph:
    """The packaged prefill graph with a trap in front of the target."""
    graph = load_graph("prefill-mtp.yaml")
    nodes = (
        replace(n, stage="traps:Prefill", options=tuple(sorted(options.items()))) if n.name == "target" else n
        for n in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))
