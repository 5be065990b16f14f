"""Prometheus metrics of a run, served on 127.0.0.1 or by whoever owns the registry.

Knows: names, the HTTP port. Does not know: where numbers come from.

Every metric starts with ``draftline_`` and has the label ``group``, the number of the replica. ``docs/operations.md``
says what each means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily

from draftline.graph.errors import UsageError

from .running import Runtime

HOST = "127.0.0.1"
TOTALS = {
    "hops": "Messages of all steps between driver and workers",
    "waves": "Verify calls",
    "late_messages": "Messages of an old epoch or step, dropped",
    "refused_messages": "Frames that were no message of this run, dropped",
    "hangups": "Connections of strangers that ended, most of them cut off for a frame that is too long",
    "restarts": "Times that the workers of the group were started anew",
    "cancelled_drafts": "Draft calls that were skipped because no request needed them any more",
}
_FIELDS = {"late_messages": "late", "refused_messages": "refused", "cancelled_drafts": "cancelled"}
_WAITS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


class Metrics:
    """Metrics in a registry, with a server of their own if there is a ``port``."""

    def __init__(self, port: int | None, registry: CollectorRegistry | None = None) -> None:
        """Without a ``registry``, in one of their own. Raises UsageError if the port is taken."""
        self.registry = CollectorRegistry() if registry is None else registry
        self._runtimes: dict[str, Runtime] = {}

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"draftline_{name}", says, ("group", *labels), registry=self.registry)

        self.steps = counter("steps", "Decode steps", "k")
        self.tokens = counter("tokens", "Tokens committed")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of admitted requests")
        self.replayed = counter("replayed_tokens", "Rows computed again after a failure")
        self.drafted = counter("draft_tokens", "Drafts proposed, by position (1 is the first)", "position")
        self.accepted = counter("accepted_tokens", "Drafts accepted, by position (1 is the first)", "position")
        self.rows = counter("rows", "Rows of verify calls that stood for a request")
        self.pad_rows = counter("pad_rows", "Rows of verify calls that stood for nobody")
        self.requests = counter("requests", "Requests that ended, by finish reason", "reason")
        self.captures = Gauge(
            "draftline_captures", "Segments captured by the workers that run now", ("group",), registry=self.registry
        )
        self.queue_wait = Histogram(
            "draftline_queue_wait_seconds",
            "From submission to a slot",
            ("group",),
            buckets=_WAITS,
            registry=self.registry,
        )
        self.registry.register(self)
        try:
            self._served = None if port is None else start_http_server(port, HOST, self.registry)
        except (OSError, OverflowError) as error:
            raise UsageError(f"--metrics-port {port}: cannot listen on {HOST}: {error}") from None

    @property
    def port(self) -> int:
        """Where it listens; 0 if it does not."""
        return 0 if self._served is None else int(self._served[0].server_port)

    def watch(self, group: str, runtime: Runtime) -> None:
        """Serve the runtime's own totals too."""
        self._runtimes[group] = runtime

    def collect(self) -> Iterator[Any]:
        """For the registry: the runtimes' totals as they are now."""
        for name, says in TOTALS.items():
            family = CounterMetricFamily(f"draftline_{name}", says, labels=["group"])
            for group, runtime in self._runtimes.items():
                family.add_metric([group], getattr(runtime.totals, _FIELDS.get(name, name)))
            yield family

    def close(self) -> None:
        """Give the port back. May be called again."""
        if self._served is not None:
            server, thread = self._served
            server.shutdown()
            server.server_close()
            thread.join()
