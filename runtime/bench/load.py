"""Requests at a rate, or from so many clients; what became of them in numbers.

Knows: arrivals, percentiles. Does not know: HTTP, files.

Open loop: arrivals are Poisson with the given rate and do not wait for answers, so a server that is too slow shows in
the latencies (Schroeder, Wierman and Harchol-Balter 2006, "Open versus closed").
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .client import Client, Sample

PERCENTS = (50, 90, 99)


async def open_loop(client: Client, bodies: Sequence[Mapping[str, Any]], rate: float, seed: int) -> list[Sample]:
    """All bodies, ``rate`` per second."""
    rng, tasks, due = random.Random(seed), [], time.perf_counter()
    for body in bodies:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(client.ask(body)))
        due += rng.expovariate(rate)
    return list(await asyncio.gather(*tasks))


async def closed_loop(client: Client, bodies: Sequence[Mapping[str, Any]], clients: int) -> list[Sample]:
    """All bodies, ``clients`` at once."""
    left, out = iter(bodies), list[Sample]()

    async def one() -> None:
        for body in left:
            out.append(await client.ask(body))

    await asyncio.gather(*(one() for _ in range(clients)))
    return out


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between closest ranks, as numpy's default; NaN of nothing."""
    if not values:
        return math.nan
    ranked, place = sorted(values), (len(values) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def figures(samples: Sequence[Sample], before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """Of one run; times in milliseconds. ``acceptance`` by position and ``tokens_per_step`` of the server's requests
    meanwhile, whoever sent them; None where nothing was drafted."""
    good = [s for s in samples if not s.error]
    took = max((s.start + s.whole for s in samples), default=0.0) - min((s.start for s in samples), default=0.0)
    tokens = sum(s.tokens for s in good)
    out: dict[str, Any] = {
        "requests": len(samples),
        "failed": len(samples) - len(good),
        "errors": sorted({s.error for s in samples if s.error})[:5],
        "seconds": round(took, 3),
        "prompt_tokens": sum(s.prompt_tokens for s in good),
        "tokens": tokens,
        "tokens_per_second": round(tokens / took, 2) if took else 0.0,
        "requests_per_second": round(len(good) / took, 3) if took else 0.0,
    }
    times = {
        "ttft": [s.first for s in good if s.first],
        "itl": [gap for s in good for gap in s.gaps],
        "e2e": [s.whole for s in good],
    }
    for name, values in times.items():
        ms = [value * 1000 for value in values]
        found = {f"p{p}": percentile(ms, p) for p in PERCENTS} | {"mean": sum(ms) / len(ms) if ms else math.nan}
        out[f"{name}_ms"] = {k: None if math.isnan(v) else round(v, 2) for k, v in found.items()}
    return out | _speculation(before, after)


def _speculation(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    drafts = grown.get("num_drafts", 0.0)
    if not drafts:
        return {"acceptance": None, "tokens_per_step": None}
    positions = sorted(int(n.partition("/")[2]) for n in grown if n.startswith("num_accepted_tokens_per_pos/"))
    shares = [round(grown[f"num_accepted_tokens_per_pos/{p}"] / drafts, 4) for p in positions]
    return {"acceptance": shares, "tokens_per_step": round(1 + grown["num_accepted_tokens"] / drafts, 4)}
