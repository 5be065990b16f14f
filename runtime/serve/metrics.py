"""What the server measures of requests, under vLLM's names, so that its dashboards work.

Knows: names, buckets. Does not know: routes, engines. ``docs/serving.md`` says what each means.

The names and their labels are those of vLLM's ``/metrics`` (docs.vllm.ai, "Production Metrics").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ..engine import Engine

PREFIX = "vllm:"
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_COUNTS = tuple(float(m * 10**e) for e in range(5) for m in (1, 2, 5))


class ServeMetrics:
    """Counters and histograms in ``registry``; ``engines`` gives what to look at when somebody asks."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self.registry, self._labels = registry, (model, "0")
        self.engines: Callable[[], Iterable[Engine]] = tuple

        def make(kind: Any, name: str, says: str, *labels: str, **more: Any) -> Any:
            return kind(PREFIX + name, says, ("model_name", "engine", *labels), registry=registry, **more)

        def histogram(name: str, says: str, buckets: tuple[float, ...]) -> Histogram:
            return make(Histogram, name, says, buckets=buckets).labels(*self._labels)

        self.prompt_tokens = make(Counter, "prompt_tokens", "Prompt tokens of requests").labels(*self._labels)
        self.generated = make(Counter, "generation_tokens", "Tokens generated").labels(*self._labels)
        self._success = make(Counter, "request_success", "Requests that ended, by reason", "finished_reason")
        self.first = histogram("time_to_first_token_seconds", "From arrival to the first token", _FIRST)
        self.between = histogram("inter_token_latency_seconds", "Between two steps' tokens of a request", _BETWEEN)
        self.whole = histogram("e2e_request_latency_seconds", "From arrival to the last token", _LATENCY)
        self.prompt = histogram("request_prompt_tokens", "Prompt tokens per request", _COUNTS)
        self.made = histogram("request_generation_tokens", "Tokens generated per request", _COUNTS)
        self.most = histogram("request_params_max_tokens", "max_tokens of requests", _COUNTS)
        for reason in ("stop", "length", "abort", "error"):
            self._success.labels(*self._labels, reason)
        registry.register(self)

    def ended(self, reason: str) -> None:
        """A request ended."""
        self._success.labels(*self._labels, reason).inc()

    def clock(self, prompt_tokens: int, max_tokens: int) -> Clock:
        """A request has arrived."""
        self.prompt_tokens.inc(prompt_tokens)
        self.prompt.observe(prompt_tokens)
        self.most.observe(max_tokens)
        return Clock(self)

    def collect(self) -> Iterable[Any]:
        """For the registry: gauges as they are now."""
        engines = list(self.engines())
        schedulers = [e.scheduler for e in engines]
        pages = sum(e.sizes.geometry().num_pages for e in engines)
        free = sum(e.num_free_pages for e in engines)
        yield self._gauge("num_requests_running", "Requests that decode", sum(len(s.live) for s in schedulers))
        yield self._gauge("num_requests_waiting", "Requests that wait", sum(len(s.waiting) for s in schedulers))
        usages = [s.prefix.usage for s in schedulers if s.prefix is not None]
        for name, says, count in (
            ("num_preemptions", "Times that a request gave its pages back", sum(s.preemptions for s in schedulers)),
            ("prefix_cache_queries", "Prompt tokens looked up", sum(u.queries for u in usages)),
            ("prefix_cache_hits", "Prompt tokens found", sum(u.hits for u in usages)),
        ):
            family = CounterMetricFamily(PREFIX + name, says, labels=("model_name", "engine"))
            family.add_metric(self._labels, count)
            yield family
        yield self._gauge(
            "kv_cache_usage_perc", "Share of cache pages in use, 0 to 1", 1 - free / pages if pages else 0.0
        )

    def _gauge(self, name: str, says: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + name, says, labels=("model_name", "engine"))
        family.add_metric(self._labels, value)
        return family


class Clock:
    """Times of one request."""

    def __init__(self, metrics: ServeMetrics) -> None:
        self._metrics, self._began = metrics, time.monotonic()
        self._last: float | None = None
        self._tokens, self._over = 0, False

    def came(self, tokens: int) -> None:
        """A step's tokens are here."""
        now = time.monotonic()
        if self._last is None:
            self._metrics.first.observe(now - self._began)
        else:
            self._metrics.between.observe(now - self._last)
        self._last = now
        self._tokens += tokens
        self._metrics.generated.inc(tokens)

    def ended(self, reason: str) -> None:
        """The first call counts."""
        if not self._over:
            self._over = True
            self._metrics.whole.observe(time.monotonic() - self._began)
            self._metrics.made.observe(self._tokens)
            self._metrics.ended(reason)

    def left(self) -> None:
        """Nobody waits for it any more."""
        self.ended("abort")
