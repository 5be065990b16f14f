"""buffers: every value gets its bytes in one arena; temporaries that are never live together share them.

Knows: lifetimes, alignment, what the driver reads and writes. Does not know: what the values mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from draftline.compiler.core import IR, ITEMSIZE, Op, Value
from draftline.compiler.plan import BufferSpec
from draftline.graph.errors import PlanError

ALIGN = 64
"""Bytes: a cache line, and enough for every vector load."""


@dataclass(frozen=True)
class Lifetime:
    """A value lives from operation ``first`` to operation ``last``, both included, on ``devices``."""

    name: str
    nbytes: int
    first: int
    last: int
    devices: frozenset[str] = frozenset()

    def meets(self, other: Lifetime) -> bool:
        """Return whether the two must not share bytes. Devices run side by side, so only values of one and
        the same device may follow each other in memory."""
        apart = self.last < other.first or other.last < self.first
        alone = self.devices == other.devices and len(self.devices) <= 1
        return not (apart and alone)


@dataclass(frozen=True)
class PlaceBuffers:
    """Fills ``buffers``, ``arena_nbytes`` and ``metadata``; drops optional outputs that nobody reads.
    The order of kinds in the arena is stated in ``plan.py``."""

    name: str = "buffers"

    def run(self, ir: IR) -> IR:
        ir = drop_unread(ir)
        outputs = {view.buffer for _, view in ir.outputs}
        values = [v if v.kind != "temp" or v.name not in outputs else replace(v, kind="output") for v in ir.values]
        specs: list[BufferSpec] = []
        end = 0
        for value in sorted((v for v in values if v.kind != "temp"), key=_rank):
            specs.append(_spec(value, end))
            end += aligned(specs[-1].nbytes)
        temps = {v.name: v for v in values if v.kind == "temp"}
        offsets = pack(lifetimes(ir, temps), base=end)
        specs += [_spec(temps[name], offset) for name, offset in offsets.items()]
        return replace(
            ir,
            values=tuple(values),
            buffers=tuple(specs),
            arena_nbytes=max((aligned(spec.offset + spec.nbytes) for spec in specs), default=0),
            metadata=_metadata(specs),
        )


def _rank(value: Value) -> tuple[int, str]:
    """Return the sort key of a persistent value. States come first and by name, so that plans which have the
    same states agree on where they are; int64 inputs side by side, so that a step's metadata is one copy."""
    if value.kind == "state":
        return 0, value.name
    if value.kind == "input":
        return (1 if value.dtype == "int64" else 2), ""
    return 3, ""


def _metadata(specs: list[BufferSpec]) -> tuple[int, int]:
    mine = [spec for spec in specs if spec.kind == "input" and spec.dtype == "int64"]
    if not mine:
        return 0, 0
    return mine[0].offset, mine[-1].offset + mine[-1].nbytes - mine[0].offset


def lifetimes(ir: IR, names: Iterable[str]) -> list[Lifetime]:
    """Return when each of the values is first written and last read, counted in operations."""
    ops, values = ir.ops, {v.name: v for v in ir.values}
    last_step = {view.buffer for _, view in ir.state}
    lives = []
    for name in names:
        users = [i for i, op in enumerate(ops) if name in op.reads() or name in op.writes()]
        if not users:
            users = [0]
        lives.append(
            Lifetime(
                name,
                nbytes(values[name]),
                users[0],
                len(ops) if name in last_step else users[-1],
                frozenset(ops[i].device for i in users) if ops else frozenset(),
            )
        )
    return lives


def pack(lives: Iterable[Lifetime], base: int = 0) -> dict[str, int]:
    """Return an aligned offset of ``base`` or more for each lifetime, so that no two that meet overlap.

    Largest first, each at the lowest offset that is free: simple, and never worse than the sum of sizes.
    """
    placed: list[tuple[int, Lifetime]] = []
    for life in sorted(lives, key=lambda one: (-one.nbytes, one.first, one.name)):
        offset = base
        for start, other in sorted((p for p in placed if p[1].meets(life)), key=lambda p: p[0]):
            if start >= offset + life.nbytes:
                break
            offset = max(offset, aligned(start + other.nbytes))
        placed.append((offset, life))
    return {life.name: offset for offset, life in placed}


def drop_unread(ir: IR) -> IR:
    """Return the IR without optional outputs whose value nobody reads, and without values nobody names."""
    read = {name for op in ir.ops for name in op.reads()}
    read |= {view.buffer for _, view in (*ir.outputs, *ir.state)}
    ops = [replace(op, outputs=tuple(o for o in op.outputs if _kept(ir, op, o[0], o[1].buffer, read))) for op in ir.ops]
    named = read | {name for op in ops for name in op.writes()}
    values = tuple(v for v in ir.values if v.kind != "temp" or v.name in named)
    return replace(ir, items=tuple(ops), values=values)


def _kept(ir: IR, op: Op, port: str, value: str, read: set[str]) -> bool:
    if op.poll:
        return True
    declared = ir.stage(op.node).signature.output(port)
    return value in read or declared is None or not declared.optional


def aligned(count: int) -> int:
    """Return ``count`` bytes rounded up to the alignment."""
    return -(-count // ALIGN) * ALIGN


def nbytes(value: Value) -> int:
    """Return the size of a value in bytes. Raises PlanError while its shape has symbols."""
    dims = [dim for dim in value.shape if isinstance(dim, int)]
    if len(dims) != len(value.shape):
        raise PlanError(f"value {value.name!r} still has a symbolic shape {value.shape}")
    return math.prod(dims) * ITEMSIZE[value.dtype]


def _spec(value: Value, offset: int) -> BufferSpec:
    size = nbytes(value)
    shape = tuple(dim for dim in value.shape if isinstance(dim, int))
    return BufferSpec(value.name, value.dtype, shape, offset, size, value.kind)
