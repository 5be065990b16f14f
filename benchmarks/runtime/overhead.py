"""What a step costs more in worker processes than inline, on tiny-v4: all variants take turns, step by step.

    python -m benchmarks.runtime.overhead [--requests 1 2 4 8] [--depths 0 3 7] [--steps 150] [--json]

Every variant decodes the same prompts, so step i is the same work in each; every process computes with one thread.

Columns: median step of inline; what the variant adds at the median of the paired differences, and at their 90th
percentile; median step over inline's; CPU time of the driver's thread per step; messages per step; and, from the
workers' own spans, the median time of a step in which no worker ran anything.
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
from draftline.runtime.pipeline import Pipeline, RunOptions, open_pipeline

PROMPTS = ["def read_lines(path):\n    ", "class Stack:", "import os\n", "The following table lists"] * 2
TWO = (("draft", "cpu:0"), ("pad", "cpu:0"), ("check", "cpu:1"), ("commit", "cpu:1"))


def variants(k: int) -> dict[str, dict[str, Any]]:
    """Name → settings. With K below a tile there is nothing to overlap, and with K=0 nothing to place."""
    table: dict[str, dict[str, Any]] = {"inline": {"runtime": "inline"}, "1 worker": {"runtime": "zmq"}}
    if k:
        table["2 workers"] = {"runtime": "zmq", "placement": TWO}
    if k >= 7:
        table["2 workers, overlap"] = {**table["2 workers"], "overlap": True}
    return table


def opened(settings: dict[str, Any], k: int, requests: int) -> Pipeline:
    """A pipeline with ``requests`` requests in the middle of decoding."""
    settings = {"threads": 1, **settings}
    graph = replace(load_graph("mtp.yaml"), placement=settings.pop("placement", ()))
    options = RunOptions(trace=Path(os.devnull)) if settings["runtime"] == "zmq" else RunOptions()
    pipeline = open_pipeline(graph, options, num_speculative_tokens=k, max_num_seqs=requests, **settings)
    for i, prompt in enumerate(PROMPTS[:requests]):
        pipeline.engine.add(i, pipeline.request(prompt, 1000, ignore_eos=True))
    for _ in range(3):
        pipeline.engine.step()
    return pipeline


def measure(k: int, requests: int, steps: int) -> list[dict[str, Any]]:
    """One row per variant that has a counterpart."""
    pipelines = {name: opened(settings, k, requests) for name, settings in variants(k).items()}
    wall: dict[str, list[float]] = {name: [] for name in pipelines}
    driver: dict[str, list[float]] = {name: [] for name in pipelines}
    before = {name: (p.engine.runtime.totals.hops, p.engine.runtime.totals.steps) for name, p in pipelines.items()}
    for _ in range(steps):
        for name, pipeline in pipelines.items():
            cpu, began = time.thread_time(), time.perf_counter()
            pipeline.engine.step()
            wall[name].append((time.perf_counter() - began) * 1e6)
            driver[name].append((time.thread_time() - cpu) * 1e6)
        if any(p.engine.num_unfinished < requests for p in pipelines.values()):
            break
    journals = {name: [live.tokens for live in p.engine._live.values()] for name, p in pipelines.items()}
    assert all(tokens == journals["inline"] for tokens in journals.values()), "a runtime changed a token"
    rows = []
    base = np.array(wall["inline"])
    for name, pipeline in pipelines.items():
        totals = pipeline.engine.runtime.totals
        hops, done = totals.hops - before[name][0], totals.steps - before[name][1]
        added = np.array(wall[name]) - base
        if name != "inline":
            row: dict[str, Any] = {"K": k, "requests": requests, "variant": name}
            row |= {"inline_us": round(float(np.median(base))), "added_us": round(float(np.median(added)))}
            row |= {"added_p90_us": round(float(np.percentile(added, 90)))}
            row |= {"ratio": round(float(np.median(wall[name]) / np.median(base)), 3)}
            row |= {"driver_us": round(float(np.median(driver[name]))), "hops": round(hops / done, 1)}
            row |= {"idle_us": round(idle(pipeline)), "steps": len(added)}
            rows.append(row)
        pipeline.close()
    return rows


def idle(pipeline: Pipeline) -> float:
    """Median microseconds of a step in which no worker ran a segment, by the trace."""
    events = [e for e in pipeline.observers.trace._events if e["ph"] == "X"]
    busy: dict[int, list[tuple[float, float]]] = {}
    for e in events:
        if e["tid"] > 0:
            busy.setdefault(e["args"]["step"], []).append((e["ts"], e["ts"] + e["dur"]))
    return float(np.median([_without(e["dur"], busy[e["args"]["step"]]) for e in events if e["name"][:4] == "step"]))


def _without(whole: float, spans: list[tuple[float, float]]) -> float:
    end = 0.0
    for a, b in sorted(spans):
        whole -= max(0.0, b - max(a, end))
        end = max(end, b)
    return whole


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--requests", type=int, nargs="+", default=[1, 2, 4, 8])
    p.add_argument("--depths", type=int, nargs="+", default=[0, 3, 7])
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
