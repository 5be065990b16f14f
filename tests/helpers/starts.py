"""Stages whose start goes wrong in a worker. Helper for tests; no tests in here."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from draftline.graph.core import Graph
from draftline.graph.errors import GraphError
from draftline.stages.accept import AcceptGreedy
from draftline.stages.verify import Verify as RealVerify


def _refuse(text: str) -> NoReturn:
    raise GraphError(text)


DO = {
    "raise": lambda: 1 // 0,
    "exit": lambda: sys.exit("no licence"),
    "refuse": lambda: _refuse("accept: temperature is 2; 0 is wanted"),
    "hang": lambda: (print("waiting for a licence", file=sys.stderr), time.sleep(3600)),
}


class Accept(AcceptGreedy):
    """Its constructor does ``harm``; with ``flag``, only if that file exists, which it removes."""

    signature = replace(AcceptGreedy.signature, options=(("harm", "raise"), ("flag", "")))

    def __init__(self, context: Any, harm: str = "raise", flag: str = "") -> None:
        if not flag or os.path.exists(flag):
            Path(flag).unlink(missing_ok=True) if flag else None
            DO[harm]()
        super().__init__(context)


class Held(RealVerify):
    """Holds the interpreter's lock in C code for a long time when it is called; says so in a file ``flag``-PID."""

    signature = replace(RealVerify.signature, options=(("flag", ""),))

    def __init__(self, context: Any, flag: str = "") -> None:
        super().__init__(context)
        self._flag = flag

    def __call__(self, call: Any, inputs: Any, outputs: Any) -> None:
        Path(f"{self._flag}-{os.getpid()}").touch()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # else it would end the sleep
        ctypes.PyDLL(None).sleep(600)


def with_stage(graph: Graph, name: str, stage: str, **options: Any) -> Graph:
    """``graph`` with another stage at the node, or nested node, of this name."""

    def changed(nodes):
        for node in nodes:
            if node.graph is not None:
                node = replace(node, graph=replace(node.graph, nodes=tuple(changed(node.graph.nodes))))
            if node.name == name:
                node = replace(node, stage=stage, options=tuple(sorted(options.items())))
            yield node

    return replace(graph, nodes=tuple(changed(graph.nodes)))
