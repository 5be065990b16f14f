"""Measuring what stages, messages and whole steps cost here: real decode steps on made-up prompts.

Knows: what to run and which times to take. Does not know: where the figures are kept, what they are used for.

Every figure is a median over steps, and the depths take turns, so that a slow moment of the machine hits all alike.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from draftline.compiler.costs import DISPATCH, HOP
from draftline.compiler.plan import CostEntry
from draftline.graph.core import Graph
from draftline.graph.errors import UsageError
from draftline.stages.core import Call, Inputs

from .adaptive import Evidence, StepCost
from .calibration import Record
from .deployment import Compiler, Lookup
from .engine import Engine
from .request import Request
from .running import Runtime, call, drive

PROMPT = 24
"""Tokens of a made-up prompt."""
SECONDS = 3.0
"""What the steps of one number of requests may take; at least ``LEAST`` rounds are run."""
ROUNDS, LEAST = 15, 5

Start = Callable[[str, Lookup, Graph], Runtime]
"""(inline or zmq, lookup, graph) → a runtime that is not bound to any plan yet."""


class Clock:
    """Times of stage calls, in their order: (stage, width, iteration, began, ended), the latter two in ns."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, int, int]] = []

    def timing(self, lookup: Lookup, tile: int) -> Lookup:
        """``lookup``, whose stages tell this clock of every call."""

        def found(name: str) -> Any:
            stage = lookup(name)

            def make(context: Any, **options: Any) -> Callable[[Call, Inputs, Mapping[str, Tensor]], None]:
                inner = stage(context, **options)

                def timed(which: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
                    began = time.perf_counter_ns()
                    inner(which, inputs, outputs)
                    ended = time.perf_counter_ns()
                    # Inside the chunk loop a call is a tile wide, elsewhere as wide as what it reads first.
                    width = tile if which.width else len(next(t for t in inputs.values() if t is not None))
                    self.calls.append((name, width, which.iteration, began, ended))

                return timed

            make.signature = stage.signature  # type: ignore[attr-defined]
            return make

        return cast(Lookup, found)

    def take(self) -> list[tuple[str, int, int, int, int]]:
        """The calls since the last time."""
        taken, self.calls = self.calls, []
        return taken


def measure(graph: Graph, prefill: Graph, compiler: Compiler, start: Start, runtime: str) -> Record:
    """Costs of the deployment of ``compiler``. Stages are timed in this process, a hop as what the worker processes
    add, whole steps in the ``runtime`` that will be used. Raises DraftlineError as a run would, and UsageError if the
    context has no room for two steps at the largest depth."""
    sizes, clock = compiler.sizes, Clock()
    least = 2 * sizes.k_max + 4  # a prompt of two, a step that commits K+1, and one that proposes K
    if sizes.max_model_len < least:
        raise UsageError(
            f"costs at K={sizes.k_max} are measured in a context of at least {least} tokens, and max_model_len is"
            f" {sizes.max_model_len}; raise --max-model-len, or give a number of speculative tokens in place of auto"
        )
    counts = sorted({1, sizes.max_num_seqs})
    together = replace(graph, placement=())
    here = replace(compiler, sizes=replace(sizes, overlap=False))  # there is nobody to overlap with
    timed = replace(here, lookup=clock.timing(compiler.lookup, sizes.tile))
    with _engine(together, prefill, timed, start("inline", timed.lookup, together)) as engine:
        entries = _stages(engine, clock)
        steps = _steps(engine, counts)
    workers = start("zmq", compiler.lookup, graph)
    with _engine(graph, prefill, compiler, workers) as engine:
        entries.append(_hop(engine, workers))
        if runtime == "zmq":
            steps = _steps(engine, counts)
    return Record(sizes.max_num_seqs, sizes.k_max, tuple(entries), tuple(steps))


@contextmanager
def _engine(graph: Graph, prefill: Graph, compiler: Compiler, runtime: Runtime) -> Iterator[Engine]:
    try:
        yield Engine(graph, prefill, compiler, runtime, policy=_Fixed())
    finally:
        runtime.close()


class _Fixed:
    """A policy that takes the depth it was told."""

    def __init__(self) -> None:
        self.depth = self.room = 0

    def new(self) -> Evidence:
        return Evidence(0)

    def observe(self, own: Evidence, asked: int, accepted: int) -> None:
        pass

    def choose(self, batch: Sequence[tuple[Evidence, int]], least: int = 0) -> int:
        self.room = min(cap for _, cap in batch)
        return min(self.depth, max(cap for _, cap in batch))


class _Steps:
    """Decode steps of a fixed number of requests, for ever: who ends is followed by another."""

    def __init__(self, engine: Engine, requests: int) -> None:
        assert isinstance(engine.policy, _Fixed)
        self._engine, self._requests, self._policy = engine, requests, engine.policy
        self._random, self._made = np.random.default_rng(0), 0
        self._room = engine.sizes.max_model_len

    def step(self, depth: int) -> int | None:
        """Nanoseconds of one step at this depth; None for one that was not only that: requests came, or were too near
        their ends."""
        fresh = self._fill()
        self._policy.depth = depth
        began = time.perf_counter_ns()
        self._engine.step()
        took = time.perf_counter_ns() - began
        return None if fresh or self._policy.room < depth else took

    def _fill(self) -> bool:
        fresh = False
        while self._engine.num_unfinished < self._requests:
            length = max(2, min(PROMPT, self._room // 4))
            prompt = self._random.integers(self._engine.shape.vocab_size, size=length)
            self._engine.add(self._made, Request(tuple(map(int, prompt)), self._room, ignore_eos=True))
            self._made, fresh = self._made + 1, True
        return fresh

    def end(self) -> None:
        """Withdraw all."""
        self._engine.withdraw()
        self._engine.drain()


def _stages(engine: Engine, clock: Clock) -> list[CostEntry]:
    """One entry per (stage, width), and what a step takes besides its stages, per chunk."""
    k, steps = engine.k_max, _Steps(engine, engine.sizes.max_num_seqs)
    times: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    gaps: list[float] = []
    for _ in range(LEAST + 2):
        clock.take()
        took = steps.step(k)
        calls = clock.take()
        for name, width, iteration, began, ended in calls:
            times[name, width][iteration].append(ended - began)
        if took is not None and calls:
            chunks = sum(name.startswith("accept") for name, *_ in calls) or 1
            inside = sum(ended - began for *_, began, ended in calls)
            gaps.append((calls[-1][4] - calls[0][3] - inside) / chunks)
    steps.end()
    entries = [
        # A drafter's calls differ (the first brings its cache up to date): the mean over a step's calls.
        CostEntry(name, width, _micros(statistics.fmean(map(statistics.median, each.values()))), "measured")
        for (name, width), each in sorted(times.items())
    ]
    return [*entries, CostEntry(DISPATCH, 0, _micros(statistics.median(gaps)) if gaps else 0.0, "measured")]


def _steps(engine: Engine, counts: Sequence[int]) -> list[StepCost]:
    """Whole steps at every depth, with few and with many requests."""
    found: list[StepCost] = []
    for requests in counts:
        steps = _Steps(engine, requests)
        times: dict[int, list[int]] = {k: [] for k in range(engine.k_max + 1)}
        ends = time.monotonic() + SECONDS
        while True:
            for k, seen in times.items():
                took = steps.step(k)
                if took is not None:
                    seen.append(took)
            enough = min(map(len, times.values())) - 1  # the first round warms up
            if enough >= ROUNDS or (time.monotonic() > ends and enough >= LEAST):
                break
        steps.end()
        found += [StepCost(k, requests, _micros(statistics.median(t[1:]))) for k, t in times.items()]
    return found


def _hop(engine: Engine, runtime: Any) -> CostEntry:
    """What one message adds: the time of a call less the time that workers spent in their segments, over its
    messages."""
    steps = _Steps(engine, 1)
    steps.step(engine.k_max)
    bound, _ = engine.prepare_step()
    hops = []
    for _ in range(ROUNDS):
        for _, spans in runtime.tracks():
            list(spans.take())
        sent, began = runtime.totals.hops, time.perf_counter_ns()
        drive(call(runtime.start(bound)))
        took = time.perf_counter_ns() - began
        busy = sum(end - begin for _, spans in runtime.tracks() for begin, end, *_ in spans.take())
        hops.append((took - busy) / max(runtime.totals.hops - sent, 1))
    steps.end()
    return CostEntry(HOP, 0, _micros(max(statistics.median(hops), 0.0)), "measured")


def _micros(ns: float) -> float:
    return round(ns / 1000, 1)
