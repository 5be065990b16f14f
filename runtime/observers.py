"""The observers of a run: one per replica, over one trace file and one metrics port.

Knows: who wants to know. Does not know: events' details.
"""

from __future__ import annotations

from pathlib import Path

from .metrics import Metrics
from .observe import Observer
from .trace import Trace
from .watching import Watching


class Observers:
    """Open for a run; ``close`` writes the trace and gives the port back."""

    def __init__(self, trace: Path | None, metrics_port: int | None) -> None:
        """Raises UsageError if the trace cannot be written or the port is taken."""
        self._path = trace
        self.trace = None if trace is None else Trace.to(trace)
        self.metrics = None if metrics_port is None else Metrics(metrics_port)

    def of(self, group: int) -> Observer:
        """The observer of a replica."""
        if self.trace is None and self.metrics is None:
            return Observer(group)
        return Watching(group, self.trace, self.metrics)

    def close(self) -> None:
        """May be called again."""
        if self.trace is not None and self._path is not None:
            self.trace.write(self._path)
        if self.metrics is not None:
            self.metrics.close()
