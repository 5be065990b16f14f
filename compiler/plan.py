"""The plan: what one decode step does, frozen, as plain data with JSON in and out.

Knows: buffers, views, segments, instructions, the layout with its rivals. Does not know: how a plan is
made (``compile.py``), how it is run (``draftline.runtime``), tensors.

One arena holds every buffer. Its persistent part comes first, in this order: states by name, int64 inputs
(contiguous, so that a step's metadata is one copy), other inputs, outputs; temporaries follow and share
memory by lifetime. Plans of one deployment that have the same states (every K, and the prefill) put them at
the same offsets, so one arena serves them all: ``arena_for`` checks that and gives its size.

What a run leaves undefined: a row that no wave served, and a column of a chunk that was skipped, hold
whatever the memory held before. Stages must select (``where``), never multiply by a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypeAliasType

from draftline.compiler.program import (
    Condition,
    Copy,
    Deadline,
    Edge,
    Instruction,
    LiveAbove,
    Operation,
    RowsAbove,
    View,
    WorkerProgram,
)
from draftline.graph.errors import PlanError, UncoveredShapeError
from draftline.stages.core import AnyLayout, Call

__all__ = [
    "FORMAT",
    "BufferSpec",
    "Chunk",
    "Condition",
    "Copy",
    "CostEntry",
    "Deadline",
    "Edge",
    "Instruction",
    "Kind",
    "Kinds",
    "LayoutChoice",
    "LiveAbove",
    "Operation",
    "Plan",
    "Rejected",
    "Rival",
    "RowsAbove",
    "Scalar",
    "Segment",
    "StageRun",
    "View",
    "WorkerProgram",
    "arena_for",
]

FORMAT = 3
"""Version of the JSON form; a file of another version is not read."""

Scalar = TypeAliasType("Scalar", "str | int | float | bool | tuple[Scalar, ...] | None")
"""What a stage option may be: JSON scalars and (nested) tuples of them."""

Kind = Literal["input", "state", "output", "temp"]

Kinds = Literal["bxs", "packed", "any"]
"""Which layouts compete: every B×S, the packed one alone, or all of them."""


@dataclass(frozen=True)
class BufferSpec:
    """``nbytes`` at ``offset`` (64-byte aligned) of the arena, seen as ``shape`` of ``dtype``.

    ``kind`` other than ``temp`` is persistent: nothing else ever lives in these bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    kind: Kind


@dataclass(frozen=True)
class StageRun:
    """One call of one stage: which view each port gets. An input mapped to None gets None.

    ``op`` is unique in the plan (``draft.2``, ``check.verify.c0``); ``node`` is the path in the graph
    (``check.verify``) and stands for one stage instance. An output that is not listed has no buffer: the
    port is optional and nobody reads it. The rest is the ``Call`` without its wave.
    """

    op: str
    node: str
    stage: str
    options: tuple[tuple[str, Scalar], ...]
    inputs: tuple[tuple[str, View | None], ...]
    outputs: tuple[tuple[str, View], ...]
    iteration: int = 0
    chunk: int = 0
    start: int = 0
    width: int = 0

    def call(self, wave: int = 0) -> Call:
        """Return what the stage is told in wave ``wave``."""
        return Call(self.iteration, self.chunk, self.start, self.width, wave)


@dataclass(frozen=True)
class Segment:
    """Stage runs, in order, that run as one captured callable on one device. A ``per_wave`` segment runs
    once for each wave, and all of its stages are ``per_wave`` stages."""

    name: str
    device: str
    backend: str
    runs: tuple[StageRun, ...]
    per_wave: bool = False


@dataclass(frozen=True)
class Chunk:
    """Window columns ``[start, start + S)``, of which the first ``width`` are active, the rest padding."""

    index: int
    start: int
    width: int


@dataclass(frozen=True)
class Rejected:
    """A layout that breaks a named rule."""

    layout: AnyLayout
    rule: str
    reason: str


@dataclass(frozen=True)
class Rival:
    """A layout that breaks no rule but costs more. ``cost`` in microseconds (see ``docs/layouts.md``)."""

    layout: AnyLayout
    cost: float
    reason: str


@dataclass(frozen=True)
class LayoutChoice:
    """The layout, its chunks, and why the others lost. ``chunks`` is empty for a graph without a chunk loop;
    ``waves_max`` is the number of waves of a chunk when all slots are live."""

    chosen: AnyLayout
    chunks: tuple[Chunk, ...]
    waves_max: int
    cost: float
    rejected: tuple[Rejected, ...] = ()
    rivals: tuple[Rival, ...] = ()


@dataclass(frozen=True)
class CostEntry:
    """Cost of one call of ``stage`` at ``width`` rows, in microseconds. Width 0 stands for every width that
    has no entry of its own, stage ``*`` for every stage that has none."""

    stage: str
    width: int
    micros: float
    source: Literal["assumed", "measured"]


@dataclass(frozen=True)
class Plan:
    """The frozen result of compiling one graph for one K. See the module's docstring."""

    name: str
    graph_key: str
    key: str
    num_speculative_tokens: int
    tile: int
    dtype: str
    """Torch's name of the model dtype: ``float32`` or ``bfloat16``."""
    dims: tuple[tuple[str, int], ...]
    """(graph symbol, value) pairs, sorted."""
    layout: LayoutChoice
    buffers: tuple[BufferSpec, ...]
    arena_nbytes: int
    metadata: tuple[int, int]
    """(offset, nbytes) of the arena's range that holds every int64 input."""
    segments: tuple[Segment, ...]
    workers: tuple[WorkerProgram, ...]
    outputs: tuple[tuple[str, View], ...]
    """(graph output, where it is) pairs."""
    state: tuple[str, ...]
    """Inputs whose value comes from the step before, not from the driver."""
    cost_table: tuple[CostEntry, ...]
    acceptance: float
    """Probability that the target accepts a draft, as the cost model assumed it."""
    versions: tuple[tuple[str, str], ...]
    deadlines: tuple[Deadline, ...] = ()
    edges: tuple[Edge, ...] = ()
    format: int = field(default=FORMAT)

    @property
    def hops(self) -> int:
        """Messages of a step when every device has a process: one from the driver, one to it, and every edge."""
        return 2 + len(self.edges)

    @property
    def entry(self) -> str:
        """The device whose worker the driver starts."""
        return next(w.device for w in self.workers if not w.instructions or w.instructions[0].op != "WAIT")

    @property
    def exit(self) -> str:
        """The device whose worker tells the driver that the step is done."""
        return self.segments[-1].device

    def deadline(self, op: Operation) -> float:
        """Return the seconds that an instruction of this kind may take. Raises PlanError if none is set."""
        for deadline in self.deadlines:
            if deadline.op == op:
                return deadline.seconds
        raise PlanError(f"plan {self.name!r} sets no deadline for {op}")

    def buffer(self, name: str) -> BufferSpec:
        """Return the buffer of that name. Raises PlanError."""
        for spec in self.buffers:
            if spec.name == name:
                return spec
        raise PlanError(f"plan {self.name!r} has no buffer {name!r}")

    def segment(self, name: str) -> Segment:
        """Return the segment of that name. Raises PlanError."""
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise PlanError(f"plan {self.name!r} has no segment {name!r}")

    def dim(self, symbol: str) -> int:
        """Return the value of a graph symbol. Raises PlanError."""
        for known, value in self.dims:
            if known == symbol:
                return value
        raise PlanError(f"plan {self.name!r} has no dimension {symbol!r}")

    def covers(self, num_requests: int, depth: int) -> None:
        """Return if ``num_requests`` requests of at most ``depth`` drafts each fit this plan.

        Raises UncoveredShapeError, naming the shape and the plan.
        """
        slots, drafts = self.dim("N"), self.num_speculative_tokens
        if not 0 <= num_requests <= slots or not 0 <= depth <= drafts:
            shape = f"{num_requests} requests x {depth} drafts"
            raise UncoveredShapeError(
                f"plan {self.name!r} ({self.layout.chosen}, K={drafts}) does not cover {shape}:"
                f" it was compiled for 0 to {slots} requests x 0 to {drafts} drafts",
                rule="covers",
            )

    def to_json(self, indent: int | None = None) -> str:
        """Return the plan as JSON text; ``from_json`` gives back an equal plan."""
        return _ADAPTER.dump_json(self, indent=indent).decode()

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan that ``to_json`` wrote. Raises PlanError if the text is anything else."""
        try:
            plan = _ADAPTER.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the start"
            raise PlanError(f"not a plan: {first['msg']} at {where}", rule="json") from error
        if plan.format != FORMAT:
            raise PlanError(f"plan format {plan.format} is not the format {FORMAT} that is read here", "json")
        return plan


def arena_for(plans: Sequence[Plan]) -> int:
    """Return the bytes of one arena in which all ``plans`` can run in turn, a state of one being the state of
    the next. Raises PlanError if two plans do not agree on their states."""
    wanted = {spec for spec in plans[0].buffers if spec.kind == "state"} if plans else set()
    for plan in plans:
        mine = {spec for spec in plan.buffers if spec.kind == "state"}
        if mine != wanted:
            names = ", ".join(sorted({spec.name for spec in mine ^ wanted}))
            raise PlanError(f"plans {plans[0].name!r} and {plan.name!r} cannot share an arena: states {names} differ")
    return max((plan.arena_nbytes for plan in plans), default=0)


_ADAPTER: TypeAdapter[Plan] = TypeAdapter(Plan)
