"""The nouns of the compiler: what passes hand to each other. Immutable values, and shape arithmetic on them.

Knows: deployments, values, operations, loops, segments, the IR, the Pass protocol. Does not know: what any
pass does, the finished plan's JSON.

A *value* is what one or several operations write and others read; it becomes one buffer of the same name.
A ``View`` (see ``plan.py``) names a value or its slice. Shapes may hold the late symbols ``S`` and ``W``
until the layout is chosen; every other symbol is an integer from ``bind`` on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from draftline.compiler.costs import CostTable
from draftline.compiler.plan import (
    BufferSpec,
    Edge,
    Kind,
    Kinds,
    LayoutChoice,
    Scalar,
    View,
    WorkerProgram,
)
from draftline.graph.core import Dim, Graph, Node, Signature
from draftline.graph.errors import PlanError
from draftline.stages.sampling.params import MAX_LOGPROBS

Lookup = Callable[[str], Any]
"""Stage name → stage class with a class attribute ``signature``, or the signature itself. Raises GraphError
for an unknown name."""

LATE = ("S", "W")
"""Symbols that get their value from the layout."""

ITEMSIZE = {"int64": 8, "int32": 4, "bool": 1, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per element of every dtype that a buffer may have."""

MODEL_DTYPES = {"fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}
"""Names of a model dtype, short and long."""


@dataclass(frozen=True)
class Deployment:
    """What a graph is compiled for. Counts are tokens or requests; ``dtype`` is float32 or bfloat16.

    ``model_dims`` gives the model's symbols (H, D, …). ``max_depth`` is the largest K of the deployment: it
    fixes M, so that plans of different K share their states.
    """

    num_speculative_tokens: int
    tile: int
    max_num_seqs: int
    max_model_len: int
    page_size: int
    prefill_tile: int
    max_depth: int
    dtype: str
    model_dims: tuple[tuple[str, int], ...]
    device: str = "cpu:0"
    overlap: bool = False
    """Whether verification of the first chunk may start before the last draft is there (pass ``overlap``)."""
    layouts: Kinds = "bxs"
    """Which layouts compete: every B×S, the packed one alone, or all of them (``any``)."""
    slot_per_row: bool = False
    """As in ``stages.models.core.Shape``: without it there is no packed layout."""
    stage_timeout: float = 60.0
    """Seconds that one RUN may take before its worker counts as hung."""
    capture: str = "eager"
    """The capture backend of every segment."""
    sampling_words: int = 1024
    """Q: int64 words in which a request's sampling parameters must fit."""
    max_logprobs: int = MAX_LOGPROBS
    """Y - 1."""

    @classmethod
    def of(cls, *, model_dims: Mapping[str, int], **numbers: Any) -> Deployment:
        """Return the deployment of these numbers; ``model_dims`` in any order is the same one."""
        return cls(model_dims=tuple(sorted(model_dims.items())), **numbers)


def signature_of(lookup: Lookup, stage: str) -> Signature:
    """Return the signature of a stage name. Raises GraphError for an unknown name."""
    found = lookup(stage)
    return found if isinstance(found, Signature) else found.signature


@dataclass(frozen=True)
class BoundStage:
    """The stage of one node of the graph, with its options complete."""

    node: str
    stage: str
    signature: Signature
    options: tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class Value:
    """``dtype`` is concrete (never ``model``)."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    kind: Kind = "temp"


@dataclass(frozen=True)
class Op:
    """One call of one stage. Fields as in ``plan.StageRun``, plus where it runs."""

    name: str
    node: str
    stage: str
    inputs: tuple[tuple[str, View | None], ...]
    outputs: tuple[tuple[str, View], ...]
    iteration: int = 0
    chunk: int = 0
    start: int = 0
    width: int = 0
    per_wave: bool = False
    device: str = ""
    gate: str = ""
    """A bool [N] value; the operation is skipped if none of it is true."""
    poll: bool = False
    """No stage: gives the value of port ``there`` if its writer, on another device, is done by now, else that of
    ``before``, else true everywhere."""

    def input(self, port: str) -> View | None:
        return dict(self.inputs).get(port)

    def views(self) -> tuple[View, ...]:
        """Everything that the operation looks at, its condition too."""
        seen = tuple(view for _, view in self.inputs if view is not None)
        return (*seen, View(self.gate)) if self.gate else seen

    def reads(self) -> tuple[str, ...]:
        return tuple(view.buffer for view in self.views())

    def writes(self) -> tuple[str, ...]:
        return tuple(view.buffer for _, view in self.outputs)


@dataclass(frozen=True)
class Loop:
    """A chunk loop that waits for the layout. ``results`` are (output, value) pairs: what later operations
    call the loop's outputs until ``chunk`` has replaced them."""

    name: str
    node: Node
    path: str
    inputs: tuple[tuple[str, View | None], ...]
    results: tuple[tuple[str, str], ...]
    suffix: str = ""
    iteration: int = 0

    def reads(self) -> tuple[str, ...]:
        return tuple(view.buffer for _, view in self.inputs if view is not None)

    def writes(self) -> tuple[str, ...]:
        return tuple(value for _, value in self.results)


@dataclass(frozen=True)
class SegmentOps:
    """Operations that run as one callable: names, in order."""

    name: str
    device: str
    ops: tuple[str, ...]
    per_wave: bool = False


@dataclass(frozen=True)
class IR:
    """What a pass takes and gives. Fields are filled from top to bottom; an empty one is still to come."""

    graph: Graph
    deployment: Deployment
    costs: CostTable
    dims: tuple[tuple[str, int], ...] = ()
    stages: tuple[BoundStage, ...] = ()
    values: tuple[Value, ...] = ()
    items: tuple[Op | Loop, ...] = ()
    outputs: tuple[tuple[str, View], ...] = ()
    state: tuple[tuple[str, View], ...] = ()
    """(input, its value in the next step) pairs."""
    layout: LayoutChoice | None = None
    segments: tuple[SegmentOps, ...] = ()
    buffers: tuple[BufferSpec, ...] = ()
    arena_nbytes: int = 0
    metadata: tuple[int, int] = (0, 0)
    workers: tuple[WorkerProgram, ...] = ()
    edges: tuple[Edge, ...] = ()

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(item for item in self.items if isinstance(item, Op))

    def value(self, name: str) -> Value:
        """Return the value of that name. Raises PlanError."""
        for value in self.values:
            if value.name == name:
                return value
        raise PlanError(f"graph {self.graph.name!r} has no value {name!r}")

    def stage(self, node: str) -> BoundStage:
        """Return the bound stage of a node path. Raises PlanError."""
        for stage in self.stages:
            if stage.node == node:
                return stage
        raise PlanError(f"node {node!r} is not bound to a stage")

    def chosen(self) -> LayoutChoice:
        """Return the layout. Raises PlanError before it is chosen."""
        if self.layout is None:
            raise PlanError("the layout is not chosen yet")
        return self.layout


class Pass(Protocol):
    """One step of compilation: a frozen dataclass with a name and a pure function of the IR."""

    @property
    def name(self) -> str: ...

    def run(self, ir: IR) -> IR: ...


def shape_of(view: View, values: Mapping[str, Value]) -> tuple[Dim, ...]:
    """Return the shape that a view shows. Raises PlanError for an unknown value or a missing axis."""
    if view.buffer not in values:
        raise PlanError(f"a view names {view.buffer!r}, which no operation and no input provides")
    shape = values[view.buffer].shape
    if view.axis is None:
        return shape
    if not 0 <= view.axis < len(shape):
        raise PlanError(f"a view of {view.buffer!r} cuts axis {view.axis} of shape {show(shape)}")
    middle: tuple[Dim, ...] = () if view.squeeze else (view.length,)
    return (*shape[: view.axis], *middle, *shape[view.axis + 1 :])


def show(shape: tuple[Dim, ...]) -> str:
    """Return a shape as people write it: ``[8, W]``."""
    return "[" + ", ".join(str(dim) for dim in shape) + "]"


def resolve_signature(
    signature: Signature,
    connected: Mapping[str, tuple[Dim, ...] | None],
    dims: Mapping[str, Dim],
    where: str,
) -> dict[str, tuple[Dim, ...]]:
    """Return the shape of each output of ``signature``, given the shapes of its connected inputs.

    A symbol takes the value of the first input that binds it, else of the graph symbol of that name. ``S``
    and ``W`` stand for themselves until ``dims`` has them. Raises PlanError (rules ``ShapesAgree``,
    ``SymbolsBound``) naming ``where`` and the port.
    """
    bound: dict[str, Dim] = {}
    for port in signature.inputs:
        shape = connected.get(port.name)
        if shape is None:
            continue
        at = f"{where}.{port.name} wants {show(port.shape)}, gets {show(shape)}"
        if len(shape) != len(port.shape):
            raise PlanError(at + f": {len(port.shape)} axes, not {len(shape)}", rule="ShapesAgree")
        for wanted, got in zip(port.shape, shape, strict=True):
            expected = bound.setdefault(wanted, got) if isinstance(wanted, str) else wanted
            if expected != got:
                raise PlanError(f"{at}: {wanted} is {expected}, not {got}", rule="ShapesAgree")
    return {port.name: close(port.shape, bound, dims, f"{where}.{port.name}") for port in signature.outputs}


def close(shape: tuple[Dim, ...], bound: Mapping[str, Dim], dims: Mapping[str, Dim], where: str) -> tuple[Dim, ...]:
    """Return ``shape`` with each symbol replaced by its value. Raises PlanError naming an unknown symbol."""
    closed: list[Dim] = []
    for dim in shape:
        value: Dim | None = dim if isinstance(dim, int) else bound.get(dim, dims.get(dim))
        if value is None and dim in LATE:
            value = dim
        if value is None:
            raise PlanError(
                f"{where} has shape {show(shape)}, but {dim!r} has no value: no input binds it and it is none"
                f" of the known symbols {', '.join(sorted({*dims, *LATE}))}",
                rule="SymbolsBound",
            )
        closed.append(value)
    return tuple(closed)
