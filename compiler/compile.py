"""compile_graph: a graph and a deployment in, a verified plan out.

Knows: the order of the passes. Does not know: what a pass does, the plan cache, how a plan runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import torch

from draftline.compiler.capture import check_backend
from draftline.compiler.core import IR, MODEL_DTYPES, Deployment, Lookup, Op, Pass, signature_of
from draftline.compiler.costs import DEFAULT_COSTS, CostTable
from draftline.compiler.passes.bind import Bind, stage_nodes
from draftline.compiler.passes.buffers import PlaceBuffers
from draftline.compiler.passes.chunk import CutChunks
from draftline.compiler.passes.fuse import Fuse
from draftline.compiler.passes.layout import ChooseLayout
from draftline.compiler.passes.overlap import Overlap
from draftline.compiler.passes.place import Place
from draftline.compiler.passes.schedule import Schedule
from draftline.compiler.passes.unroll import Unroll
from draftline.compiler.plan import FORMAT, Deadline, Kinds, Plan, Segment, StageRun
from draftline.compiler.verifier import verify
from draftline.graph.core import Graph, canonical

Dump = Callable[[str, IR], None]
"""Called with a pass's name and what it returned."""

PASSES = ("bind", "unroll", "layout", "chunk", "place", "overlap", "fuse", "buffers", "schedule")
"""Names of the passes, in order: what ``--dump-ir=PASS`` may name."""

QUICK = 30.0
"""Seconds for an instruction that only copies or sends."""


def deadlines(stage_timeout: float) -> tuple[Deadline, ...]:
    """Return the deadlines of a plan. Who waits for another worker is given as long as two of its stages."""
    quick = tuple(Deadline(op, min(QUICK, stage_timeout)) for op in ("READ", "POLL", "SIGNAL", "WRITE"))
    return (*quick, Deadline("RUN", stage_timeout), Deadline("WAIT", 2 * stage_timeout))


def passes(lookup: Lookup) -> tuple[Pass, ...]:
    """Return the passes in order."""
    return (
        Bind(lookup),
        Unroll(),
        ChooseLayout(),
        CutChunks(),
        Place(),
        Overlap(),
        Fuse(),
        PlaceBuffers(),
        Schedule(),
    )


def compile_graph(
    graph: Graph,
    *,
    num_speculative_tokens: int,
    tile: int,
    max_num_seqs: int,
    max_model_len: int,
    page_size: int,
    prefill_tile: int,
    max_depth: int,
    dtype: str,
    model_dims: Mapping[str, int],
    lookup: Lookup,
    device: str = "cpu:0",
    overlap: bool = False,
    layouts: Kinds = "bxs",
    slot_per_row: bool = False,
    stage_timeout: float = 60.0,
    capture: str = "eager",
    costs: CostTable = DEFAULT_COSTS,
    dump: Dump | None = None,
) -> Plan:
    """Compile ``graph`` (a decode step or a prefill call) for K = ``num_speculative_tokens``.

    ``tile``: rows of a verify call (T). ``max_num_seqs``: slots (N). ``max_model_len`` (L) and ``page_size``
    in tokens, G = ceil(L / page_size). ``prefill_tile``: rows of a prefill call (P). ``max_depth``: the
    largest K of the deployment, M = max_depth + 1. ``dtype``: fp32 or bf16. ``model_dims``: the model's own
    symbols (H, D). ``overlap``, ``layouts``, ``slot_per_row``, ``stage_timeout`` and ``capture`` as in ``Deployment``.
    ``lookup``: stage name to stage class. ``dump`` sees the IR after each pass.

    Raises GraphError for a graph that breaks a rule, PlanError for one that cannot be compiled as asked.
    """
    deployment = Deployment.of(
        num_speculative_tokens=num_speculative_tokens,
        tile=tile,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        page_size=page_size,
        prefill_tile=prefill_tile,
        max_depth=max_depth,
        dtype=dtype,
        model_dims=model_dims,
        device=device,
        overlap=overlap,
        layouts=layouts,
        slot_per_row=slot_per_row,
        stage_timeout=stage_timeout,
        capture=capture,
    )
    return compile_deployment(graph, deployment, lookup, costs, dump)


def compile_deployment(
    graph: Graph,
    deployment: Deployment,
    lookup: Lookup,
    costs: CostTable = DEFAULT_COSTS,
    dump: Dump | None = None,
) -> Plan:
    """As ``compile_graph``, with the numbers in one value."""
    ir = IR(graph, deployment, costs)
    for step in passes(lookup):
        ir = step.run(ir)
        if dump is not None:
            dump(step.name, ir)
        verify(ir, step.name)
    return finish(ir, plan_key(components(graph, deployment, lookup, costs)))


def finish(ir: IR, key: str) -> Plan:
    """Return the plan of a fully scheduled IR. Raises PlanError for a capture backend that its device has not."""
    backend = ir.deployment.capture
    for segment in ir.segments:
        check_backend(backend, segment.device, f"segment {segment.name!r}")
    ops = {op.name: op for op in ir.ops}
    return Plan(
        name=ir.graph.name,
        graph_key=graph_key(ir.graph),
        key=key,
        num_speculative_tokens=ir.deployment.num_speculative_tokens,
        tile=ir.deployment.tile,
        dtype=MODEL_DTYPES[ir.deployment.dtype],
        dims=ir.dims,
        layout=ir.chosen(),
        buffers=ir.buffers,
        arena_nbytes=ir.arena_nbytes,
        metadata=ir.metadata,
        segments=tuple(
            Segment(s.name, s.device, backend, tuple(_stage_run(ir, ops[name]) for name in s.ops), s.per_wave)
            for s in ir.segments
        ),
        workers=ir.workers,
        outputs=ir.outputs,
        state=tuple(name for name, _ in ir.state),
        cost_table=ir.costs.entries,
        acceptance=ir.costs.acceptance,
        versions=tuple(sorted(versions().items())),
        deadlines=deadlines(ir.deployment.stage_timeout),
        edges=ir.edges,
    )


def _stage_run(ir: IR, op: Op) -> StageRun:
    return StageRun(
        op=op.name,
        node=op.node,
        stage=op.stage,
        options=ir.stage(op.node).options,
        inputs=op.inputs,
        outputs=op.outputs,
        iteration=op.iteration,
        chunk=op.chunk,
        start=op.start,
        width=op.width,
    )


def graph_key(graph: Graph) -> str:
    """Return the hash of a graph without its settings: they reach a plan only through the deployment."""
    return replace(graph, settings=()).key


def versions() -> dict[str, str]:
    """Return the versions that a plan depends on."""
    try:
        ours = version("draftline")
    except PackageNotFoundError:
        ours = "unknown"
    return {"draftline": ours, "plan format": str(FORMAT), "torch": torch.__version__}


def components(
    graph: Graph, deployment: Deployment, lookup: Lookup, costs: CostTable = DEFAULT_COSTS
) -> dict[str, str]:
    """Return what a plan depends on, by name. Raises GraphError for an unknown stage."""
    stages = {node.stage: canonical(signature_of(lookup, node.stage)) for _, node in stage_nodes(graph)}
    plain = dict(vars(replace(deployment, dtype=MODEL_DTYPES.get(deployment.dtype, deployment.dtype))))
    depth = plain.pop("num_speculative_tokens")
    return {
        "graph": graph_key(graph),
        "stage signatures": _digest(stages),
        "K": str(depth),
        **{name.replace("_", " "): str(value) for name, value in plain.items()},
        "cost table": costs.key,
        **{f"version of {name}": text for name, text in versions().items()},
    }


def plan_key(parts: Mapping[str, str]) -> str:
    """Return the key of a plan: the hash of its components."""
    return _digest(dict(parts))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()
