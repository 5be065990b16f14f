"""Capture: turning a segment's Python callable into something that is replayed, and counting how often.

Knows: the protocol, the ``eager`` backend, which backend a device has. Does not know: segments' content, plans, how
``inductor.py`` compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from draftline.graph.errors import PlanError, nearest
from draftline.stages.models.core import Loaded

Replay = Callable[[int], None]
"""Run a segment as the wave of that number; tensors are bound already."""


class Capture(Protocol):
    """A capture backend. After ``seal`` ``captures`` stays what it is."""

    @property
    def name(self) -> str: ...

    @property
    def captures(self) -> int: ...

    def models(self, loaded: Loaded) -> Loaded:
        """The models as the stages of this backend's segments call them: the same ones for every plan."""
        ...

    def capture(self, run: Replay, rehearse: Callable[[], None]) -> Replay:
        """Return a callable that does what ``run`` does; counts as one capture. ``rehearse`` runs the segment once
        with pad rows only, on memory of its own."""
        ...

    def seal(self) -> None:
        """Warm-up is over: nothing is captured from here on."""
        ...


@dataclass
class Eager:
    """Captures nothing: the callable itself is replayed. Each is still counted, so that a runtime that
    captures after warm-up is found out on any backend."""

    name: str = "eager"
    captures: int = field(default=0, init=False)

    def models(self, loaded: Loaded) -> Loaded:
        return loaded

    def capture(self, run: Replay, rehearse: Callable[[], None]) -> Replay:
        self.captures += 1
        return run

    def seal(self) -> None:
        pass


DEVICES = {"eager": ("cpu", "cuda", "npu"), "inductor": ("cpu", "cuda")}
"""Backend → the kinds of device that have it."""

NOT_HERE = {
    "npugraph": "it needs torch_npu and an Ascend NPU, and is not part of this version",
    "cudagraph": "it needs a CUDA device, and is not part of this version",
}
"""Backends that are named in plans of other deployments, and why they cannot be used."""


def check_backend(name: str, device: str = "cpu", where: str = "") -> None:
    """Raises PlanError for a backend that cannot capture here, or not on ``device``: none pretends."""
    at = f"{where} on {device}: " if where else ""
    if name in NOT_HERE:
        raise PlanError(f"{at}capture backend {name!r} is not available: {NOT_HERE[name]}; 'eager' is")
    if name not in DEVICES:
        raise PlanError(f"{at}unknown capture backend {name!r}" + nearest(name, [*DEVICES, *NOT_HERE]))
    if device.split(":")[0] not in DEVICES[name]:
        raise PlanError(
            f"{at}capture backend {name!r} is for {' and '.join(DEVICES[name])} devices; 'eager' runs on every one"
        )


def backend(name: str) -> Capture:
    """Return a fresh capture backend. Raises PlanError for one that is not available, CapacityError for one that
    lacks its compiler."""
    check_backend(name)
    if name == "eager":
        return Eager()
    from draftline.compiler.inductor import Inductor

    return Inductor()
