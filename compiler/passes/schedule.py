"""schedule: per device, the READ, RUN and WRITE instructions of a step.

Knows: waves and their conditions. Does not know: how a worker waits, copies or runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftline.compiler.core import IR, Op, SegmentOps
from draftline.compiler.passes.fuse import LIVE
from draftline.compiler.plan import Copy, Instruction, LiveAbove, WorkerProgram


@dataclass(frozen=True)
class Schedule:
    """Fills ``workers``.

    Wave w of a chunk serves live slots w·B to w·B + B − 1 in slot order, so it runs only if more than w·B are
    live; a chunk with nobody live runs no wave. Stages that are not ``per_wave`` always run: they hand on
    what a loop carries. A state is copied by the worker that computed it.
    """

    name: str = "schedule"

    def run(self, ir: IR) -> IR:
        ops = {op.name: op for op in ir.ops}
        devices = list(dict.fromkeys(segment.device for segment in ir.segments))
        return replace(ir, workers=tuple(self._program(ir, device, ops) for device in devices))

    def _program(self, ir: IR, device: str, ops: dict[str, Op]) -> WorkerProgram:
        mine = [op for op in ops.values() if op.device == device]
        read = {name for op in mine for name in op.reads()}
        written = {name for op in mine for name in op.writes()}
        inputs = tuple(b.name for b in ir.buffers if b.kind == "input" and b.name in read)
        outputs = tuple(b.name for b in ir.buffers if b.kind == "output" and b.name in written)
        owner = {name: op.device for op in ops.values() for name in op.writes()}
        first = ir.segments[0].device
        copies = tuple(Copy(view, name) for name, view in ir.state if owner.get(view.buffer, first) == device)
        runs = [run for s in ir.segments if s.device == device for run in _runs(ir, s, ops)]
        return WorkerProgram(
            device,
            (
                Instruction("READ", buffers=inputs),
                *runs,
                Instruction("WRITE", buffers=outputs, copies=copies),
            ),
        )


def _runs(ir: IR, segment: SegmentOps, ops: dict[str, Op]) -> list[Instruction]:
    if not segment.per_wave:
        return [Instruction("RUN", segment.name)]
    layout = ir.chosen()
    live = ops[segment.ops[0]].input(LIVE)
    return [
        Instruction(
            "RUN",
            segment.name,
            wave,
            when=None if live is None else LiveAbove(live.buffer, wave * layout.chosen.requests),
        )
        for wave in range(layout.waves_max)
    ]
