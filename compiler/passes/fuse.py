"""fuse: neighbours on one device, under one condition, become a segment: one captured callable.

Knows: devices, per-wave stages and the input that conditions them. Does not know: capture, memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from draftline.compiler.core import IR, Op, SegmentOps
from draftline.compiler.plan import View
from draftline.stages.core import Packed

LIVE = "live"
"""The input port of a per-wave stage that says which slots are in the chunk: bool [N]."""


def counted(ir: IR, op: Op) -> View | None:
    """Return the input of a per-wave operation whose elements the waves serve: live slots or, packed, active rows."""
    packed = isinstance(ir.chosen().chosen, Packed)
    return op.input(ir.stage(op.node).signature.packs if packed else LIVE)


@dataclass(frozen=True)
class Fuse:
    """Fills ``segments``. The order of operations stays as it is."""

    name: str = "fuse"

    def run(self, ir: IR) -> IR:
        groups = [list(ops) for key, ops in groupby(ir.ops, key=partial(_condition, ir)) if key is not None]
        return replace(
            ir,
            segments=tuple(
                SegmentOps(
                    name=f"s{index}.{_title(ops)}",
                    device=ops[0].device,
                    ops=tuple(op.name for op in ops),
                    per_wave=ops[0].per_wave,
                )
                for index, ops in enumerate(groups)
            ),
        )


def _condition(ir: IR, op: Op) -> tuple[str, str, bool, View | None, int] | None:
    """Return what two neighbours must have in common: the device and when they run. A poll is in no segment, and an
    operation with a gate shares its segment with none: it is asked for again before each."""
    if op.poll:
        return None
    return (
        op.device,
        op.name if op.gate else "",
        op.per_wave,
        counted(ir, op) if op.per_wave else None,
        op.chunk if op.per_wave else 0,
    )


def _title(ops: list[Op]) -> str:
    first, last = (op.node.rpartition(".")[2] for op in (ops[0], ops[-1]))
    return first if first == last else f"{first}-{last}"
