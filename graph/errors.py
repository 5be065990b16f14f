"""The one error tree. Every error that draftline raises on purpose is one of these.

    DraftlineError
    ├── GraphError            a graph, in Python or YAML, that breaks a rule
    │   └── GraphFileError    the same, with file and line
    ├── PlanError             a graph that cannot be compiled for this K, tile or device
    │   └── UncoveredShapeError   a plan asked for a shape that it does not cover
    ├── ModelError            a model that cannot be used as asked
    │   ├── ConfigError       a config.json key is missing, unknown or wrong
    │   └── WeightsError      a tensor is missing, extra, mis-shaped, truncated or corrupt
    ├── RequestError          a prompt or a request option that cannot be served
    ├── CapacityError         more requests or pages than were reserved at start-up
    ├── UsageError            command-line flags that contradict each other or are out of range
    ├── StageError            a stage raised while it ran
    ├── WorkerError           a worker process cannot go on
    │   ├── WorkerStartError      it was not ready in time, or ended before it was
    │   ├── WorkerLostError       it died, or the workers died too often
    │   └── WorkerLateError       it did not answer before a deadline
    └── TransportError        an endpoint, a key file or a frame that is refused

Knows: names and messages. Does not know: anything that raises them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class DraftlineError(Exception):
    """Base of every error that draftline raises on purpose."""


class GraphError(DraftlineError):
    """A graph breaks a rule. ``rule`` is the rule's name in ``graph.verify.RULES``."""

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


class GraphFileError(GraphError):
    """A graph file breaks the schema or a rule; the message starts with ``file:line``."""


class PlanError(DraftlineError):
    """A graph cannot be compiled as asked. ``rule`` is the plan verifier's rule, if one fired."""

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


class UncoveredShapeError(PlanError):
    """A plan was asked for a shape that it does not cover."""


class ModelError(DraftlineError):
    """A model cannot be used as asked."""


class ConfigError(ModelError):
    """A key of ``config.json`` is missing, unknown or wrong."""


class WeightsError(ModelError):
    """A weight tensor is missing, extra, mis-shaped, truncated or corrupt."""


class RequestError(DraftlineError):
    """A prompt or a request option cannot be served."""


class CapacityError(DraftlineError):
    """More requests or cache pages are wanted than were reserved at start-up."""


class UsageError(DraftlineError):
    """Command-line flags contradict each other or are out of range."""


class StageError(DraftlineError):
    """A stage raised while it ran; the message names stage, step and what it raised."""


class WorkerError(DraftlineError):
    """A worker process cannot go on."""


class WorkerStartError(WorkerError):
    """A worker was not ready in time, or ended before it was."""


class WorkerLostError(WorkerError):
    """A worker died, or the workers of a group died too often.

    ``outputs``: where a list of requests was run, an output for each: those that were done by then, and the others
    with what had been committed."""

    def __init__(self, message: str, outputs: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.outputs = tuple(outputs)


class WorkerLateError(WorkerError):
    """A worker did not answer before a deadline; the message says who, at what, since when."""


class TransportError(DraftlineError):
    """An endpoint, a key file or a frame is refused."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` or the list of known names, to append to a message."""
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=2, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(c) for c in close) + "?"
    return "; known: " + (", ".join(names) if names else "none")
