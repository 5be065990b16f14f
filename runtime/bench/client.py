"""One streamed request, timed; and a server's counters. The one file that speaks HTTP as a client.

Knows: server-sent events, clocks. Does not know: how many requests there are, what is made of the times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from draftline.graph.errors import UsageError


@dataclass
class Sample:
    """One request. Times in seconds: ``start`` on the clock of time.perf_counter, ``first`` to the first text, ``gaps``
    between chunks, ``whole`` to the end. ``error``: why it failed, else empty."""

    start: float
    first: float = 0.0
    gaps: list[float] = field(default_factory=list)
    whole: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    error: str = ""


class Client:
    """Connections to one server."""

    def __init__(self, url: str, key: str | None, seconds: float) -> None:
        """Raises UsageError without the package httpx."""
        try:
            import httpx
        except ImportError:
            raise UsageError("pipeline-bench needs httpx: pip install 'draftline[bench]'") from None
        self._failures = (httpx.HTTPError, httpx.InvalidURL, OSError)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=seconds, limits=limits)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, body: Mapping[str, Any]) -> Sample:
        """Stream a completion. A failure is in the sample."""
        sample = Sample(time.perf_counter())
        wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            async with self._http.stream("POST", "/v1/completions", json=wanted) as got:
                if got.status_code != 200:
                    await got.aread()
                    sample.error = f"HTTP {got.status_code}: {got.text[:200]}"
                    return sample
                last = sample.start
                async for line in got.aiter_lines():
                    last = _heard(sample, line, last)
        except self._failures as error:
            sample.error = f"{type(error).__name__}: {error}"
        sample.whole = time.perf_counter() - sample.start
        return sample

    async def counters(self) -> dict[str, float]:
        """The server's ``vllm:spec_decode…`` counters; those per position as ``name/position``. Empty where there are
        none. Raises UsageError if the server cannot be reached."""
        try:
            got = await self._http.get("/metrics")
        except self._failures as error:
            raise UsageError(f"{self._http.base_url}: {error or type(error).__name__}") from None
        out: dict[str, float] = {}
        for family in text_string_to_metric_families(got.text) if got.status_code == 200 else ():
            for s in family.samples:
                if s.name.startswith("vllm:spec_decode_") and s.name.endswith("_total"):
                    name = s.name.removeprefix("vllm:spec_decode_").removesuffix("_total")
                    name += f"/{s.labels['position']}" if "position" in s.labels else ""
                    out[name] = out.get(name, 0.0) + s.value
        return out


def _heard(sample: Sample, line: str, last: float) -> float:
    """Take note of a line of the stream; when the last text came."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return last
    value, now = json.loads(line.removeprefix("data: ")), time.perf_counter()
    if "error" in value:
        sample.error = str(value["error"].get("message", "error"))
    elif value.get("usage"):
        sample.prompt_tokens, sample.tokens = (value["usage"][f"{n}_tokens"] for n in ("prompt", "completion"))
    elif value.get("choices") and value["choices"][0].get("text"):
        if sample.first:
            sample.gaps.append(now - last)
        else:
            sample.first = now - sample.start
        return now
    return last
