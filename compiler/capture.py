"""Capture: turning a segment's Python callable into something that is replayed, and counting how often.

Knows: the protocol, the ``eager`` backend, the counter. Does not know: segments' content, plans, devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from draftline.graph.errors import PlanError, nearest

Replay = Callable[[int], None]
"""Run a segment as the wave of that number; tensors are bound already."""


class Capture(Protocol):
    """A capture backend. After warm-up ``captures`` must stay what it is."""

    @property
    def name(self) -> str: ...

    @property
    def captures(self) -> int: ...

    def capture(self, run: Replay) -> Replay:
        """Return a callable that does what ``run`` does; counts as one capture."""
        ...


@dataclass
class Eager:
    """Captures nothing: the callable itself is replayed. Each is still counted, so that a runtime that
    captures after warm-up is found out on any backend."""

    name: str = "eager"
    captures: int = field(default=0, init=False)

    def capture(self, run: Replay) -> Replay:
        self.captures += 1
        return run


NOT_HERE = {
    "inductor": "compiled segments are not part of this version",
    "npugraph": "it needs torch_npu and an Ascend NPU, and is not part of this version",
    "cudagraph": "it needs a CUDA device, and is not part of this version",
}
"""Backends that are named in plans of other deployments, and why they cannot be used."""


def backend(name: str) -> Capture:
    """Return a fresh capture backend. Raises PlanError for one that cannot capture here: none pretends."""
    if name == "eager":
        return Eager()
    if name in NOT_HERE:
        raise PlanError(f"capture backend {name!r} is not available: {NOT_HERE[name]}; 'eager' is")
    raise PlanError(f"unknown capture backend {name!r}" + nearest(name, ["eager", *NOT_HERE]))
