"""Rules on layout, segments, memory and conditions: what makes a finished plan safe to run.

Knows: chunks, waves, offsets, lifetimes, conditions. Does not know: shapes of stages (``rules_values.py``), the order
of instructions (``rules_schedule.py``).
Each function yields one message for each violation and nothing for a valid or an unfinished IR.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from draftline.compiler.core import IR, ITEMSIZE, show
from draftline.compiler.passes.buffers import ALIGN, lifetimes
from draftline.compiler.passes.fuse import LIVE
from draftline.compiler.plan import Condition, LiveAbove, RowsAbove
from draftline.stages.core import Packed


def tile_divides(ir: IR) -> Iterator[str]:
    """B·S = T, and a packed layout's tile is T: every wave is the same kernel."""
    if ir.layout and ir.layout.chunks and ir.layout.chosen.tile != ir.deployment.tile:
        yield f"{ir.layout.chosen} has {ir.layout.chosen.tile} rows, the tile has {ir.deployment.tile}"


def waves_cover(ir: IR) -> Iterator[str]:
    """The waves of a chunk have a place for every slot; packed, for every row of every slot's window."""
    if not ir.layout:
        return
    layout, waves, slots = ir.layout.chosen, ir.layout.waves_max, ir.deployment.max_num_seqs
    if isinstance(layout, Packed):
        if waves * layout.tile < slots * layout.rows:
            yield f"{waves} waves of {layout.tile} rows serve fewer than {slots} slots of {layout.rows} rows"
    elif waves * layout.requests < slots:
        yield f"{waves} waves of {layout.requests} requests serve fewer than {slots} slots"


def chunks_cover(ir: IR) -> Iterator[str]:
    """Chunks of S columns follow each other and their active widths sum to K + 1."""
    if not ir.layout or not ir.layout.chunks:
        return
    rows, window = ir.layout.chosen.rows, ir.deployment.num_speculative_tokens + 1
    for index, chunk in enumerate(ir.layout.chunks):
        if (chunk.index, chunk.start) != (index, index * rows) or not 1 <= chunk.width <= rows:
            yield f"chunk {index} is {chunk}, with {rows} rows per chunk"
    if isinstance(ir.layout.chosen, Packed) and len(ir.layout.chunks) > 1:
        yield f"{ir.layout.chosen} has {len(ir.layout.chunks)} chunks, and a packed window is one"
    active = sum(chunk.width for chunk in ir.layout.chunks)
    if active != window:
        yield f"the chunks' active widths sum to {active}, the window has {window} rows"


def placed(ir: IR) -> Iterator[str]:
    """Once one operation has a device, all have."""
    if any(op.device for op in ir.ops):
        yield from (f"{op.name} has no device" for op in ir.ops if not op.device)


def segments_complete(ir: IR) -> Iterator[str]:
    """Segments hold every operation once, in order, each segment on one device and under one condition."""
    if not ir.segments:
        return
    ops = {op.name: op for op in ir.ops if not op.poll}
    held = [name for segment in ir.segments for name in segment.ops]
    if held != list(ops):
        yield f"segments hold {held}, the operations are {list(ops)}"
        return
    for segment in ir.segments:
        for name in segment.ops:
            if ops[name].device != segment.device:
                yield f"segment {segment.name} is on {segment.device}, {name} on {ops[name].device}"
            if ops[name].per_wave != segment.per_wave:
                yield f"segment {segment.name} mixes stages that run per wave with {name}"


def buffers_fit(ir: IR) -> Iterator[str]:
    """Every value has a buffer of its own shape, dtype and size."""
    if not ir.buffers:
        return
    buffers = {spec.name: spec for spec in ir.buffers}
    for value in ir.values:
        spec = buffers.get(value.name)
        if spec is None:
            yield f"value {value.name} has no buffer"
        elif (spec.shape, spec.dtype, spec.kind) != (value.shape, value.dtype, value.kind):
            wanted = f"{value.kind} {value.dtype} {show(value.shape)}"
            yield f"buffer {spec.name} is {spec.kind} {spec.dtype} {show(spec.shape)}, its value {wanted}"
        elif spec.nbytes != math.prod(spec.shape) * ITEMSIZE[spec.dtype]:
            yield f"buffer {spec.name} has {spec.nbytes} bytes for {spec.dtype} {show(spec.shape)}"


def buffers_aligned(ir: IR) -> Iterator[str]:
    yield from (f"{spec.name} is at {spec.offset}" for spec in ir.buffers if spec.offset % ALIGN)


def buffers_inside(ir: IR) -> Iterator[str]:
    for spec in ir.buffers:
        if spec.offset < 0 or spec.offset + spec.nbytes > ir.arena_nbytes:
            yield f"{spec.name} ends at {spec.offset + spec.nbytes}, the arena at {ir.arena_nbytes}"


def buffers_apart(ir: IR) -> Iterator[str]:
    """No two buffers that are live at the same time share a byte; persistent ones always live."""
    if not ir.buffers:
        return
    lives = {life.name: life for life in lifetimes(ir, [v.name for v in ir.values])}
    for a, b in combinations(ir.buffers, 2):
        together = not a.kind == b.kind == "temp" or lives[a.name].meets(lives[b.name])
        if together and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes:
            yield f"{a.name} at {a.offset} ({a.nbytes} bytes) and {b.name} at {b.offset} share bytes"


def metadata_holds(ir: IR) -> Iterator[str]:
    """The metadata range holds every int64 input and nothing else."""
    start, size = ir.metadata
    for spec in ir.buffers:
        inside = start <= spec.offset and spec.offset + spec.nbytes <= start + size
        apart = spec.offset + spec.nbytes <= start or start + size <= spec.offset
        wanted = spec.kind == "input" and spec.dtype == "int64"
        if spec.nbytes and (not inside if wanted else not apart):
            where = "outside" if wanted else "in"
            yield f"{spec.kind} {spec.name} is {where} the range {start} to {start + size}"


def segments_exist(ir: IR) -> Iterator[str]:
    """Every RUN names a segment of its own device, and every segment is run."""
    known = {segment.name: segment for segment in ir.segments}
    run = set()
    for worker in ir.workers:
        for instruction in worker.instructions:
            if instruction.op != "RUN":
                continue
            run.add(instruction.segment)
            segment = known.get(instruction.segment)
            if segment is None:
                yield f"{worker.device} runs the unknown segment {instruction.segment!r}"
            elif segment.device != worker.device:
                yield f"{worker.device} runs {segment.name}, which is on {segment.device}"
    if ir.workers:
        yield from (f"segment {name} is never run" for name in known if name not in run)


def waves_scheduled(ir: IR) -> Iterator[str]:
    """A per-wave segment runs once for each wave 0 … waves_max − 1, any other once as wave 0."""
    if not ir.workers or ir.layout is None:
        return
    runs = [i for worker in ir.workers for i in worker.instructions if i.op == "RUN"]
    for segment in ir.segments:
        waves = [i.wave for i in runs if i.segment == segment.name]
        wanted = list(range(ir.layout.waves_max if segment.per_wave else 1))
        if waves != wanted:
            yield f"{segment.name} runs as waves {waves}, not {wanted}"


def conditions_count(ir: IR) -> Iterator[str]:
    """A condition counts the true elements of a bool [N] buffer, or the elements from 0 of an int64 [N, …] buffer."""
    buffers = {spec.name: spec for spec in ir.buffers}
    slots = ir.deployment.max_num_seqs
    for instruction in (i for worker in ir.workers for i in worker.instructions if i.when):
        when = instruction.when
        assert when is not None
        what = "live slots" if isinstance(when, LiveAbove) else "active rows"
        spec = buffers.get(when.buffer)
        fits = spec is not None and (
            (spec.dtype, spec.shape) == ("bool", (slots,))
            if isinstance(when, LiveAbove)
            else (spec.dtype, spec.shape[:1], len(spec.shape)) == ("int64", (slots,), 2)
        )
        if not fits:
            found = "unknown" if spec is None else f"{spec.dtype} {show(spec.shape)}"
            yield f"{instruction.segment} counts {what} in {when.buffer!r}, which is {found}"
        elif when.n < 0:
            yield f"{instruction.segment} waits for more than {when.n} {what}"


def waves_conditioned(ir: IR) -> Iterator[str]:
    """Wave w of a per-wave segment runs if more are served than w waves hold, and else not: w·B of the live slots or,
    packed, w·T of the active rows that its own operations are shown."""
    if not ir.workers or ir.layout is None:
        return
    chosen = ir.layout.chosen
    per_wave = {segment.name: segment.ops for segment in ir.segments if segment.per_wave}
    ops = {op.name: op for op in ir.ops}
    for instruction in (i for worker in ir.workers for i in worker.instructions if i.segment in per_wave):
        for op in (ops[name] for name in per_wave[instruction.segment]):
            wanted: Condition | None
            if isinstance(chosen, Packed):
                rows = op.input(ir.stage(op.node).signature.packs)
                wanted = RowsAbove(rows.buffer, instruction.wave * chosen.tile) if rows else None
            else:
                live = op.input(LIVE)
                wanted = LiveAbove(live.buffer, instruction.wave * chosen.requests) if live else None
            if instruction.when != wanted:
                yield f"{op.name} wave {instruction.wave} runs if {instruction.when}, not {wanted}"
