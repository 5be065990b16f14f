"""The errors of a group: who, at what, since when, and its last words.

Knows: what a message must say. Does not know: when there is something to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftline.graph.errors import WorkerLateError, WorkerLostError, WorkerStartError

from . import shared
from .process import Child


def _phase(child: Child, cells: shared.Cells) -> str:
    return "was " + shared.STATES[int(cells[child.index][shared.STATE])]


def not_ready(missing: Sequence[Child], cells: shared.Cells, seconds: float) -> WorkerStartError:
    """Some were not ready in time."""
    said = "".join(f"\n{child} {_phase(child, cells)}{child.tail()}" for child in missing)
    return WorkerStartError(f"{', '.join(map(str, missing))} not ready after {seconds:g} s{said}")


def no_start(child: Child, cells: shared.Cells) -> WorkerStartError:
    """One ended before it was ready."""
    return WorkerStartError(f"{child} {child.ending()} before it was ready; it {_phase(child, cells)}{child.tail()}")


def lost(child: Child, step: int, where: str) -> WorkerLostError:
    """One ended. ``where``: at which instruction, ready to be put behind a message."""
    return WorkerLostError(f"{child} {child.ending()} in step {step}{where}{child.tail()}")


def late(child: Child, step: int, what: str, age: float) -> WorkerLateError:
    """One hangs. ``age``: seconds since its last heartbeat."""
    return WorkerLateError(
        f"{child} is late in step {step}: {what}; its last heartbeat was {age:.1f} s ago{child.tail()}"
    )
