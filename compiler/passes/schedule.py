"""schedule: per device, the instructions of a step, and who tells whom when.

Knows: waves and their conditions, what each device has to wait for. Does not know: how a worker waits or sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from draftline.compiler.core import IR, Op
from draftline.compiler.passes.fuse import counted
from draftline.compiler.plan import (
    Condition,
    Copy,
    Edge,
    Instruction,
    LiveAbove,
    RowsAbove,
    View,
    WorkerProgram,
)
from draftline.compiler.rules_values import overlaps
from draftline.stages.core import Layout, Packed


@dataclass(eq=False)
class _Unit:
    """What runs between two points where devices may wait: a segment, a poll, or the end of a device's step."""

    device: str
    index: int
    ops: tuple[Op, ...]
    body: list[Instruction]
    before: list[Instruction] = field(default_factory=list)
    after: list[Instruction] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)
    """Device → the last of its units that is known to be done once this one is."""


@dataclass(frozen=True)
class Schedule:
    """Fills ``workers`` and ``edges``.

    Wave w of a chunk serves live slots w·B to w·B + B − 1 in slot order, so it runs only if more than w·B are
    live; a chunk with nobody live runs no wave. Packed, wave w serves active rows w·T to w·T + T − 1. Stages that are
    not ``per_wave`` always run, unless they have a gate: they hand on what a loop carries. A state is copied by the
    worker that computed it, after all have read it.

    A device waits for another only if it does not know by then, from what it was told before, that the other has
    done what it needs. The device of the last segment waits for all others, so one message tells the driver.
    """

    name: str = "schedule"

    def run(self, ir: IR) -> IR:
        units = list(_units(ir))
        edges: list[Edge] = []
        starts: list[Instruction] = []
        known: dict[str, dict[str, int]] = {unit.device: {} for unit in units}
        for unit in units:
            waits = list(_needs(ir, unit, units))
            if unit.index == 0 and unit.device != units[0].device and not waits:
                edges.append(Edge(units[0].device, unit.device))
                starts.append(Instruction("SIGNAL", edge=len(edges) - 1))
                unit.before.append(Instruction("WAIT", edge=len(edges) - 1))
            for other in waits:
                if known[unit.device].get(other.device, -1) >= other.index:
                    continue
                unit.before.append(Instruction("WAIT", edge=_tell(edges, other, unit.device)))
                for device, index in other.told.items():
                    known[unit.device][device] = max(index, known[unit.device].get(device, -1))
            known[unit.device][unit.device] = unit.index
            unit.told = dict(known[unit.device])
            _resolve_poll(edges, ir, unit, units)
        devices = list(known)
        return replace(
            ir,
            edges=tuple(edges),
            workers=tuple(
                WorkerProgram(d, tuple(_program(ir, [u for u in units if u.device == d], starts if not i else [])))
                for i, d in enumerate(devices)
            ),
        )


def _units(ir: IR) -> Iterator[_Unit]:
    """Segments and polls in the order of operations, then every device's end; the exit's comes last."""
    by_name = {op.name: op for op in ir.ops}
    first = {segment.ops[0]: segment for segment in ir.segments}
    count: dict[str, int] = {}

    def unit(device: str, ops: tuple[Op, ...], body: list[Instruction]) -> _Unit:
        count[device] = count.get(device, -1) + 1
        return _Unit(device, count[device], ops, body)

    for op in ir.ops:
        if op.poll:
            yield unit(op.device, (op,), [])
        elif op.name in first:
            segment = first[op.name]
            ops = tuple(by_name[name] for name in segment.ops)
            yield unit(op.device, ops, list(_runs(ir, segment.name, ops)))
    exit_device = ir.segments[-1].device
    owner = {name: op.device for op in ir.ops for name in op.writes()}
    for device in [*(d for d in dict.fromkeys(op.device for op in ir.ops) if d != exit_device), exit_device]:
        written = {name for op in ir.ops if op.device == device for name in op.writes()}
        outputs = tuple(b.name for b in ir.buffers if b.kind == "output" and b.name in written)
        fallback = ir.segments[0].device
        copies = tuple(Copy(view, name) for name, view in ir.state if owner.get(view.buffer, fallback) == device)
        yield unit(device, (), [Instruction("WRITE", buffers=outputs, copies=copies)])


def _runs(ir: IR, segment: str, ops: tuple[Op, ...]) -> Iterator[Instruction]:
    op = ops[0]
    if not op.per_wave:
        yield Instruction("RUN", segment, when=LiveAbove(op.gate, 0) if op.gate else None)
        return
    layout, served = ir.chosen().chosen, counted(ir, op)
    for wave in range(ir.chosen().waves_max):
        when: Condition | None = None
        if served is not None and isinstance(layout, Packed):
            when = RowsAbove(served.buffer, wave * layout.tile)
        elif served is not None and isinstance(layout, Layout):
            when = LiveAbove(served.buffer, wave * layout.requests)
        yield Instruction("RUN", segment, wave, when=when)


def _needs(ir: IR, unit: _Unit, units: list[_Unit]) -> Iterator[_Unit]:
    """The last unit of each other device that must be done before ``unit`` may run."""
    values = {value.name: value for value in ir.values}
    last: dict[str, _Unit] = {}
    at = units.index(unit)
    views = [view for op in unit.ops if not op.poll for view in op.views()]
    targets = {copy.target for i in unit.body for copy in i.copies}
    for other in units[:at]:
        if other.device == unit.device:
            continue
        written = [view for op in other.ops for _, view in op.outputs]
        read = {name for op in other.ops for name in op.reads()}
        # An end that copies nothing is no news: what came before it is all that there is to wait for.
        does = other.ops or any(i.copies for i in other.body)
        needed = any(v.buffer == w.buffer and overlaps(v, w, values[v.buffer]) for v in views for w in written)
        if does and (needed or targets & read or unit is units[-1]):
            last[other.device] = other
    yield from last.values()


def _tell(edges: list[Edge], source: _Unit, target: str) -> int:
    edges.append(Edge(source.device, target))
    source.after.append(Instruction("SIGNAL", edge=len(edges) - 1))
    return len(edges) - 1


def _resolve_poll(edges: list[Edge], ir: IR, unit: _Unit, units: list[_Unit]) -> None:
    """Give a poll its instruction; the verdict's writer tells once, however often it is asked for."""
    if not unit.ops or not unit.ops[0].poll:
        return
    op = unit.ops[0]
    there, before, target = op.input("there"), op.input("before"), op.writes()[0]
    assert there is not None
    writer = next(u for u in units for o in u.ops if there.buffer in o.writes())
    told = [i.edge for i in writer.after if i.edge >= 0 and edges[i.edge].target == unit.device]
    edge = told[0] if told else _tell(edges, writer, unit.device)
    unit.body.append(_poll(edge, there, before, target))


def _poll(edge: int, there: View, before: View | None, target: str) -> Instruction:
    return Instruction("POLL", edge=edge, copies=(Copy(there, target),), otherwise=(Copy(before, target),))


def _program(ir: IR, units: list[_Unit], starts: list[Instruction]) -> Iterator[Instruction]:
    """One device's instructions: what it waits for first, the driver's buffers, then its units in order."""
    read = {name for unit in units for op in unit.ops for name in op.reads()}
    inputs = tuple(b.name for b in ir.buffers if b.kind == "input" and b.name in read)
    for unit in units:
        yield from unit.before
        if unit.index == 0:
            yield Instruction("READ", buffers=inputs)
            yield from starts
        yield from unit.body
        yield from unit.after
