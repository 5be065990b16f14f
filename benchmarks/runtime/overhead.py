"""What a step costs more in worker processes than inline, on tiny-v4: all variants take turns, step by step.

    python -m benchmarks.runtime.overhead [--requests 1 2 4 8] [--depths 0 3 7 15] [--steps 150] [--json]

Every variant decodes the same prompts, so step i is the same work in each; every process computes with one thread.
What a segment takes varies by milliseconds on a shared machine, so what a runtime adds is measured where it is added:
in the time of a step in which no segment runs, by the spans that workers keep.

Columns: median step of inline; what the variant adds between the segments, at the median and the 90th percentile (of
the differences, step by step); the median step over inline's; CPU time of the driver's thread per step, and inline's
without its segments; messages per step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from draftline.graph.yaml import load_graph
from draftline.runtime.observe import Observer
from draftline.runtime.pipeline import Pipeline, RunOptions, open_pipeline

PROMPTS = ["def read_lines(path):\n    ", "class Stack:", "import os\n", "The following table lists"] * 2
TWO = (("draft", "cpu:0"), ("pad", "cpu:0"), ("check", "cpu:1"), ("commit", "cpu:1"))


def variants(k: int) -> dict[str, dict[str, Any]]:
    """Name → settings. With K=0 there is nothing to place, and below K=8, one chunk, nothing to overlap."""
    table: dict[str, dict[str, Any]] = {"inline": {"runtime": "inline"}, "1 worker": {"runtime": "zmq"}}
    if k:
        table["2 workers"] = {"runtime": "zmq", "placement": TWO}
    if k >= 8:
        table["2 workers, overlap"] = {**table["2 workers"], "overlap": True}
    return table


def opened(settings: dict[str, Any], k: int, requests: int) -> Pipeline:
    """A pipeline with ``requests`` requests in the middle of decoding."""
    settings = {"threads": 1, "async_scheduling": False, **settings}  # a step is over when it is over
    graph = replace(load_graph("mtp.yaml"), placement=settings.pop("placement", ()))
    options = RunOptions(trace=Path(os.devnull))
    pipeline = open_pipeline(graph, options, num_speculative_tokens=k, max_num_seqs=requests, **settings)
    pipeline.engine.observer = Observer()  # spans are kept, and read once at the end of a step
    for i, prompt in enumerate(PROMPTS[:requests]):
        pipeline.engine.add(i, pipeline.request(prompt, 1000, ignore_eos=True))
    for _ in range(3):
        pipeline.engine.step()
    return pipeline


def measure(k: int, requests: int, steps: int) -> list[dict[str, Any]]:
    """One row per variant but inline."""
    pipelines = {name: opened(settings, k, requests) for name, settings in variants(k).items()}
    wall: dict[str, list[float]] = {name: [] for name in pipelines}
    driver: dict[str, list[float]] = {name: [] for name in pipelines}
    outside: dict[str, list[float]] = {name: [] for name in pipelines}
    before = {name: (p.engine.runtime.totals.hops, p.engine.runtime.totals.steps) for name, p in pipelines.items()}
    for pipeline in pipelines.values():
        spans_of(pipeline)
    for _ in range(steps):
        for name, pipeline in pipelines.items():
            cpu, began = time.thread_time(), time.monotonic_ns()
            pipeline.engine.step()
            wall[name].append((time.monotonic_ns() - began) / 1e3)
            driver[name].append((time.thread_time() - cpu) * 1e6)
            outside[name].append(wall[name][-1] - covered(spans_of(pipeline)))
        if any(p.engine.num_unfinished < requests for p in pipelines.values()):
            break
    journals = {name: [live.tokens for live in p.engine.scheduler.live.values()] for name, p in pipelines.items()}
    assert all(tokens == journals["inline"] for tokens in journals.values()), "a runtime changed a token"
    rows = []
    for name, pipeline in pipelines.items():
        totals = pipeline.engine.runtime.totals
        hops, done = totals.hops - before[name][0], totals.steps - before[name][1]
        pipeline.close()
        if name == "inline":
            continue
        added = np.array(outside[name]) - np.array(outside["inline"])
        row: dict[str, Any] = {"K": k, "requests": requests, "variant": name}
        row |= {"inline_us": round(float(np.median(wall["inline"]))), "added_us": round(float(np.median(added)))}
        row |= {"added_p90_us": round(float(np.percentile(added, 90)))}
        row |= {"ratio": round(float(np.median(wall[name]) / np.median(wall["inline"])), 3)}
        row |= {"driver_us": round(float(np.median(driver[name])))}
        row |= {"inline_driver_us": round(float(np.median(outside["inline"])))}
        rows.append(row | {"hops": round(hops / done, 1), "steps": len(added)})
    return rows


def spans_of(pipeline: Pipeline) -> list[tuple[float, float]]:
    """(begin, end) in microseconds of the segments that ran since the last call."""
    taken = (span for _, spans in pipeline.engine.runtime.tracks() for span in spans.take())
    return [(begin / 1e3, end / 1e3) for begin, end, *_, ran in taken if ran]


def covered(spans: list[tuple[float, float]]) -> float:
    """Microseconds in which at least one segment ran."""
    whole = end = 0.0
    for a, b in sorted(spans):
        whole += max(0.0, b - max(a, end))
        end = max(end, b)
    return whole


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--requests", type=int, nargs="+", default=[1, 2, 4, 8])
    p.add_argument("--depths", type=int, nargs="+", default=[0, 3, 7, 15])
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    rows = [row for k in args.depths for n in args.requests for row in measure(k, n, args.steps)]
    if args.json:
        print(json.dumps(rows))
        return
    table = Table(title="zmq beside inline, tiny-v4, times in us per step", box=None)
    for name in rows[0]:
        table.add_column(name.replace("_us", ""), justify="left" if name == "variant" else "right")
    for row in rows:
        table.add_row(*(str(v) for v in row.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
