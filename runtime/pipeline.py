"""A graph and a model, opened for use: what the command line and a Python caller both start from.

from draftline.runtime.pipeline import open_pipeline
with open_pipeline("mtp.yaml", num_speculative_tokens=3) as pipeline:
    for output in pipeline.generate(["def main():"], max_new_tokens=32):
        print(pipeline.text.decode(output.token_ids))
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from prometheus_client import CollectorRegistry

from draftline.compiler.cache import CacheReport
from draftline.compiler.capture import backend
from draftline.compiler.compile import Dump
from draftline.compiler.core import signature_of
from draftline.compiler.costs import DISPATCH
from draftline.compiler.passes.bind import stage_nodes
from draftline.compiler.plan import Plan
from draftline.graph.core import Graph
from draftline.graph.errors import UsageError
from draftline.graph.yaml import load_graph, resolve_prefill
from draftline.stages.core import Packed
from draftline.stages.models.core import ModelFiles, Shape
from draftline.stages.models.registry import check_weights, locate, read_shape, uses_native
from draftline.stages.registry import extended

from .adaptive import Chunks, DepthPolicy
from .calibrate import measure
from .calibration import store
from .costing import NO_COSTS, STORED, Costs, find
from .deployment import DTYPES, Compiler, Lookup, Sizes, check, check_memory, load, models_of
from .engine import Engine
from .inline import InlineRuntime
from .observe import Observer
from .observers import Observers
from .replicas import generate
from .request import Listener, Output, Request
from .running import Runtime
from .settings import Settings, merge, sizes
from .text import Text, check_same_tokens
from .threads import threads_for, weight_bytes
from .workers.cores import available, share
from .workers.group import WorkerGroup
from .workers.launch import Launch, Limits

log = logging.getLogger("draftline")
PLAIN_PREFILL = "prefill.yaml"
COMPILE_TIMEOUT = 1800.0
"""Seconds that workers may take to start at least where they may have to compile the model first."""


@dataclass(frozen=True)
class RunOptions:
    """What a run leaves behind or listens to. ``trace``: file for a Chrome trace. ``metrics_port``: serves Prometheus
    metrics on 127.0.0.1, 0 for any free port; ``registry`` takes them for who serves it. ``observe``: makes one more
    observer for a replica. ``transport`` and ``curve_keys`` as in ``workers.launch.Launch``."""

    trace: Path | None = None
    metrics_port: int | None = None
    transport: str = "ipc"
    curve_keys: Path | None = None
    registry: CollectorRegistry | None = None
    observe: Callable[[int], Observer] | None = None


@dataclass(frozen=True)
class Prepared:
    """Everything that is known before weights are read: enough to explain a plan."""

    graph: Graph
    prefill: Graph
    settings: Settings
    sizes: Sizes
    shape: Shape
    files: ModelFiles
    compiler: Compiler
    costs: Costs = NO_COSTS

    def plan(self, dump: Dump | None = None) -> tuple[Plan, CacheReport | None]:
        """The plan for this K."""
        return self.compiler.plan(self.graph, self.sizes.k_max, dump)


def prepare(
    graph: Graph | str,
    *,
    source: str | None = None,
    prefill: Graph | None = None,
    plan_cache: Path | None = None,
    stages: Mapping[str, type[Any]] = MappingProxyType({}),
    costs: str = STORED,
    **wishes: Any,
) -> Prepared:
    """Load the graph and check it against the model and the wishes (names of a graph's ``settings``).

    ``source`` is the path or name that a ``Graph`` came from: its prefill graph is looked for beside it. ``stages``:
    stage classes of your own by the names that the graph gives them, wherever they were defined. ``costs``: ``stored``
    (measured on this machine before, else assumed), ``assumed``, or a file that ``--calibrate`` wrote.
    Raises GraphError, UsageError, ModelError.
    """
    if isinstance(graph, str):
        source, graph = graph, load_graph(graph)
    settings = merge(graph, wishes)
    files, lookup = locate(settings.model, settings.mtp, settings.draft_model), extended(stages)
    shape = read_shape(files)
    chosen = sizes(settings, shape)
    check(graph, shape, chosen, settings.model, settings.draft_model, lookup)
    check_same_tokens(files)
    if prefill is None and chosen.k_max == 0:
        prefill = load_graph(PLAIN_PREFILL)  # nothing drafts, so the drafter's cache stays unused
    if prefill is None:
        prefill = resolve_prefill(graph, source)
    if prefill is None:
        raise UsageError(f"graph {graph.name!r} names no prefill graph; add the key prefill, such as {PLAIN_PREFILL}")
    found = find(costs, graph, files, settings, chosen)
    compiler = Compiler(chosen, shape, lookup, plan_cache, found.table)
    return Prepared(graph, prefill, settings, chosen, shape, files, compiler, found)


def calibrated(prepared: Prepared) -> Prepared:
    """``prepared`` by costs that are measured now, and stored. Loads the model, in this process and in workers, and
    lets go of it. Raises what a run would, and UsageError if the figures cannot be stored."""
    p = prepared
    check_memory(p.files, p.sizes, 1)

    def start(runtime: str, lookup: Lookup, graph: Graph) -> Runtime:
        settings = replace(p.settings, runtime=runtime, replicas=1)
        compiler = replace(p.compiler, lookup=lookup)
        wanted = replace(p, settings=settings, compiler=compiler, graph=graph)
        return start_runtime(wanted, RunOptions(trace=Path(os.devnull)), 0)  # times of segments are kept, not written

    record = measure(p.graph, p.prefill, p.compiler, start, p.settings.runtime)
    assert p.costs.path is not None
    store(p.costs.path, p.costs.of, record)
    costs = replace(p.costs, table=record.table(), record=record)
    return replace(p, costs=costs, compiler=replace(p.compiler, costs=costs.table))


class Pipeline:
    """Engines (one per replica) with a tokenizer. ``close`` it, or use it as a context."""

    def __init__(self, prepared: Prepared, options: RunOptions = RunOptions()) -> None:
        s = prepared.settings
        check_memory(prepared.files, prepared.sizes, s.replicas)
        if prepared.sizes.adaptive and prepared.costs.record is None:
            log.warning("measuring what steps cost here, once for this machine, model and size")
            prepared = calibrated(prepared)
        self.prepared, self.text = prepared, Text(prepared.files.folder)
        self.observers = Observers(options.trace, options.metrics_port, options.registry, options.observe)
        self.engines: list[Engine] = []
        try:
            for group in range(s.replicas):
                runtime = start_runtime(prepared, options, group)
                try:
                    self.engines.append(self._engine(runtime, group))
                except BaseException:
                    runtime.close()
                    raise
        except BaseException:
            self.close()
            raise

    def _engine(self, runtime: Runtime, group: int) -> Engine:
        p = self.prepared
        observer = self.observers.of(group)
        policy = depth_policy(p) if p.sizes.adaptive else None
        return Engine(p.graph, p.prefill, p.compiler, runtime, p.settings.max_waiting, observer, policy, self.text)

    @property
    def engine(self) -> Engine:
        """The first replica's engine."""
        return self.engines[0]

    def close(self) -> None:
        """End all workers, write the trace, give the metrics port back. May be called again."""
        with ExitStack() as stack:  # one that fails to close keeps no other from it
            stack.callback(self.observers.close)
            for engine in self.engines:
                engine.runtime.retire()  # all first, so that they end at the same time
                stack.callback(engine.close)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, prompt: str | Sequence[int], max_new_tokens: int | None = None, **options: Any) -> Request:
        """A request from text or token ids; limits that are not given come from the settings."""
        ids = self.text.encode(prompt) if isinstance(prompt, str) else tuple(prompt)
        limit = self.prepared.settings.max_new_tokens if max_new_tokens is None else max_new_tokens
        return Request(ids, limit, **options)

    def generate(
        self, prompts: Sequence[str | Sequence[int]], listen: Listener | None = None, **options: Any
    ) -> list[Output]:
        """Run all prompts to their ends, in order. Raises RequestError before anything runs."""
        return self.run([self.request(p, **options) for p in prompts], listen)

    def run(self, requests: Sequence[Request], listen: Listener | None = None) -> list[Output]:
        """Run requests to their ends, in order. Raises RequestError before anything runs."""
        return generate(self.engines, requests, listen)


def depth_policy(prepared: Prepared) -> DepthPolicy:
    """Chooses K per step by the measured costs. Raises PlanError if a depth was not measured."""
    p, record = prepared, prepared.costs.record
    signatures = ((node.stage, signature_of(p.compiler.lookup, node.stage)) for _, node in stage_nodes(p.graph))
    verify = next((stage for stage, signature in signatures if signature.per_wave), "verify")
    chunks = []
    for k in range(p.sizes.k_max + 1):
        layout, costs = p.compiler.plan(p.graph, k)[0].layout, p.costs.table
        tile = p.sizes.tile
        chunks.append(
            Chunks(
                tuple(chunk.start for chunk in layout.chunks[1:]),
                1 if isinstance(layout.chosen, Packed) else layout.chosen.requests,
                costs.micros(verify, tile),
                costs.micros(DISPATCH, tile) + costs.micros("accept.greedy", tile),
            )
        )
    return DepthPolicy(record.steps if record is not None else (), p.sizes.k_max, chunks)


def start_runtime(prepared: Prepared, options: RunOptions, group: int) -> Runtime:
    """The runtime that the settings ask for, not bound to any plan yet; inline sets torch's threads for this process.
    Raises ModelError, CapacityError, UsageError and TransportError."""
    s, compiler, nbytes = prepared.settings, prepared.compiler, weight_bytes(prepared.files.folder)
    if options.transport == "ipc" and options.curve_keys is not None:
        raise UsageError(f"--curve-keys is for tcp; with it give --transport tcp://HOST, not {options.transport}")
    if options.transport != "ipc" and s.runtime != "zmq":
        raise UsageError(f"--transport is for --runtime zmq, and the runtime is {s.runtime}")
    if s.runtime == "zmq":
        # Once and here: workers could only say it as they end, and each would compile kernels of its own.
        check_weights(prepared.files, DTYPES[s.dtype])
        uses_native(prepared.files, prepared.sizes.kernels, torch.device("cpu"))
        backend(s.capture)
        patience = s.start_timeout if s.capture == "eager" else max(s.start_timeout, COMPILE_TIMEOUT)
        limits = Limits(start_timeout=float(patience), max_restarts=s.max_restarts)
        cores = share(available(), s.replicas)[group] if s.replicas > 1 else available()
        return WorkerGroup(
            Launch(
                s.model,
                prepared.sizes,
                compiler.lookup,
                limits,
                trace=options.trace is not None,
                cores=tuple(cores),
                threads=s.threads,
                nbytes=nbytes,
                mtp=s.mtp,
                draft_model=s.draft_model,
                transport=options.transport,
                curve_keys=options.curve_keys,
            )
        )
    torch.set_num_threads(threads_for(s.threads, nbytes, len(available())))
    uses = models_of(prepared.graph, compiler.lookup) if prepared.sizes.k_max else ("target",)
    return InlineRuntime(load(prepared.files, prepared.sizes, uses), compiler.lookup, options.trace is not None)


def open_pipeline(graph: Graph | str, options: RunOptions = RunOptions(), **wishes: Any) -> Pipeline:
    """``prepare`` and load. See the module's docstring."""
    return Pipeline(prepare(graph, **wishes), options)
