"""The observers of a run: one per replica, over one trace file and one metrics port.

Knows: who wants to know. Does not know: events' details.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from .metrics import Metrics
from .observe import Observer, Several
from .trace import Trace
from .watching import Watching


class Observers:
    """Open for a run; ``close`` writes the trace and gives the port back."""

    def __init__(
        self,
        trace: Path | None,
        metrics_port: int | None,
        registry: CollectorRegistry | None = None,
        more: Callable[[int], Observer] | None = None,
    ) -> None:
        """``registry``: takes the metrics, whether or not a port serves them. ``more``: makes a further observer for a
        replica. Raises UsageError if the trace cannot be written or the port is taken."""
        self._path, self._more = trace, more
        self.trace = None if trace is None else Trace.to(trace)
        wanted = metrics_port is not None or registry is not None
        self.metrics = Metrics(metrics_port, registry) if wanted else None

    def of(self, group: int) -> Observer:
        """The observer of a replica."""
        plain = self.trace is None and self.metrics is None
        own = Observer(group) if plain else Watching(group, self.trace, self.metrics)
        return own if self._more is None else Several((own, self._more(group)))

    def close(self) -> None:
        """May be called again."""
        if self.trace is not None and self._path is not None:
            self.trace.write(self._path)
        if self.metrics is not None:
            self.metrics.close()
