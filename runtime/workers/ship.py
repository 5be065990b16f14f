"""The one place that uses cloudpickle: what only the driver's own process knows, for a worker that it starts.

Knows: stage classes and a model loader that were defined in a script, a notebook or a function. Does not know: sockets;
these bytes go through a pipe that only the child has inherited, once, when it starts.

A class of an importable module travels as its name, also inside cloudpickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from draftline.graph.errors import UsageError


@dataclass(frozen=True)
class Luggage:
    """Stage name → class for names that no registry knows; ``load`` makes the model, None: read it from its folder."""

    stages: Mapping[str, type[Any]]
    load: Callable[..., Any] | None = None


def pack(luggage: Luggage) -> bytes:
    """Bytes for the pipe; none if there is nothing to send. Raises UsageError naming what cannot travel."""
    if not luggage.stages and luggage.load is None:
        return b""
    for name, value in (*luggage.stages.items(), ("the model's loader", luggage.load)):
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # anything may be wrong with an object that a user made
            raise UsageError(
                f"stage {name!r} cannot be sent to a worker process: {type(error).__name__}: {error}; keep what cannot"
                " be pickled (open files, locks, sockets) out of the class, or put it into an importable module"
            ) from error
    return cloudpickle.dumps(luggage)


def unpack(data: bytes) -> Luggage:
    """In the child: what the parent packed."""
    return cloudpickle.loads(data) if data else Luggage({})
