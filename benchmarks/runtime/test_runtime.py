"""Speed of the runtimes: a message there and back between two processes, and a decode step inline and in workers.

    make bench            # save a run
    make bench-compare    # the last run against the one before

The times of inline and zmq here come from rounds that do not take turns; to compare the two, use
``python -m benchmarks.runtime.overhead``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from draftline.graph.yaml import load_graph
from draftline.runtime.pipeline import open_pipeline
from draftline.runtime.workers import messages as m
from draftline.runtime.workers.sockets import inbox, outbox, post

KEY = bytes(m.KEY_BYTES)
ECHO = """
    import sys, zmq
    from draftline.runtime.workers import messages as m
    from draftline.runtime.workers.sockets import inbox, outbox, post
    context = zmq.Context()
    mine, back = inbox(context, sys.argv[1], None, 0), outbox(context, sys.argv[2])
    post(back, m.pack(bytes(m.KEY_BYTES), m.Idle(1, 0, 0)))
    while True:
        mine.poll()
        message, _ = m.unpack(bytes(m.KEY_BYTES), mine.recv_multipart(zmq.NOBLOCK))
        if isinstance(message, m.Stop):
            break
        post(back, m.pack(bytes(m.KEY_BYTES), m.Done(1, message.step)))
    context.destroy()
"""


@pytest.fixture
def echo() -> Iterator[Any]:
    """``echo(n)`` sends step n to another process and waits for its answer."""
    context = zmq.Context()
    with tempfile.TemporaryDirectory(prefix="dl-") as folder:
        where = [f"ipc://{Path(folder) / name}.sock" for name in ("there", "here")]
        here = inbox(context, where[1], None, 0)
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(ECHO), *where])
        there = outbox(context, where[0])
        here.poll()
        here.recv_multipart()

        def call(n: int) -> None:
            post(there, m.pack(KEY, m.Step(1, n, 0)))
            here.poll()
            assert m.unpack(KEY, here.recv_multipart(zmq.NOBLOCK))[0] == m.Done(1, n)

        yield call
        post(there, m.pack(KEY, m.Stop(1)))
        process.wait(10)
        context.destroy()


@pytest.mark.parametrize("idle_ms", [0, 10], ids=["back to back", "after 10 ms of sleep"])
def test_hops(benchmark, echo, idle_ms):
    """Two hops: there and back. A step's hops come after some milliseconds in which the receiver slept."""
    count, rounds = 0, []

    def once() -> None:
        nonlocal count
        count += 1
        began = time.perf_counter()
        echo(count)
        rounds.append((time.perf_counter() - began) * 1e6)

    setup = (lambda: time.sleep(idle_ms / 1e3)) if idle_ms else None
    benchmark.pedantic(once, setup=setup, rounds=300, warmup_rounds=20)
    hop = np.array(rounds[20:]) / 2
    benchmark.extra_info |= {"hop_p50_us": round(float(np.median(hop)), 1)}
    benchmark.extra_info |= {"hop_p99_us": round(float(np.percentile(hop, 99)), 1)}


TWO = (("draft", "cpu:0"), ("pad", "cpu:0"), ("check", "cpu:1"), ("commit", "cpu:1"))
RUNTIMES = {
    "inline": {"runtime": "inline"},
    "1 worker": {"runtime": "zmq"},
    "2 workers": {"runtime": "zmq", "placement": TWO},
    "2 workers, overlap": {"runtime": "zmq", "placement": TWO, "overlap": True},
}


CASES = [(name, k) for name in RUNTIMES for k in (0, 3, 7) if "2 workers" not in name or (k and "overlap" not in name)]
"""With K=0 there is nothing to place."""


@pytest.mark.parametrize("requests", [1, 8])
@pytest.mark.parametrize(("name", "k"), [*CASES, ("2 workers, overlap", 15), ("2 workers", 15)])
def test_step(benchmark, name, k, requests):
    """One decode step of ``requests`` requests, driver included."""
    settings: dict[str, Any] = dict(RUNTIMES[name])
    graph = replace(load_graph("mtp.yaml"), placement=settings.pop("placement", ()))
    settings |= {"num_speculative_tokens": k, "max_num_seqs": requests, "threads": 1}
    with open_pipeline(graph, **settings) as pipeline:
        for i in range(requests):
            pipeline.engine.add(i, pipeline.request("def read_lines(path):\n    ", 1000, ignore_eos=True))
        pipeline.engine.step()
        hops, steps = pipeline.engine.runtime.totals.hops, pipeline.engine.runtime.totals.steps
        benchmark.pedantic(pipeline.engine.step, rounds=40, warmup_rounds=3)
        totals = pipeline.engine.runtime.totals
        assert pipeline.engine.num_unfinished == requests
        benchmark.extra_info["hops"] = (totals.hops - hops) / (totals.steps - steps)
