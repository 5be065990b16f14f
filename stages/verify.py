"""Stage ``verify``: one wave of one chunk through the target. Knows: lanes and rows. Does not know: acceptance."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, Packed, StageContext
from .models.core import Rows
from .waves import lane_slots, merge_lanes


class Verify:
    """predicted[n, s] is the target's own token after row s of slot n; streams are its residual streams.

    A wave is always the same T-row call. In a layout B×S it has B lanes of S rows, each lane a live slot's. In a packed
    layout it has T lanes of one row, each lane a row that is active in a live slot. Lanes without anybody and columns
    beyond the active width are pad rows with slot and position -1.
    """

    signature = Signature(
        inputs=(
            Port("tokens", ("N", "S"), "int64"),
            Port("positions", ("N", "S"), "int64"),
            Port("pages", ("N", "G"), "int64"),
            Port("live", ("N",), "bool"),
        ),
        outputs=(
            Port("predicted", ("N", "S"), "int64"),
            Port("streams", ("N", "S", "H", "D"), "model", optional=True),
        ),
        per_wave=True,
        packs="positions",
        uses=("target",),
    )

    def __init__(self, context: StageContext) -> None:
        self._target = context.target
        self._layout = context.layout
        self._packed = isinstance(context.layout, Packed)

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        tokens, positions, pages, live = (inputs[k] for k in ("tokens", "positions", "pages", "live"))
        s = 1 if self._packed else self._layout.rows
        per_slot = positions.shape[1] // s  # lanes that a slot may fill
        if self._packed:
            live = (live[:, None] & (positions >= 0)).flatten()  # [N·S]
        lanes = lane_slots(live, call.wave, self._layout.tile // s)
        at = lanes.clamp(min=0)
        where = torch.where(lanes[:, None] >= 0, positions.reshape(-1, s)[at], -1).flatten()  # [T]
        slots = torch.where(where >= 0, lanes.repeat_interleave(s) // per_slot, -1)
        rows = Rows(tokens.reshape(-1, s)[at].flatten(), where, slots, pages)
        streams = self._target.forward(rows)
        predicted = self._target.greedy(streams)
        results = [(outputs["predicted"], predicted)]
        if "streams" in outputs:
            results.append((outputs["streams"], streams))
        merge_lanes(lanes, *(_by_lane(table, rows, s) for table, rows in results))


def _by_lane(table: Tensor, rows: Tensor, s: int) -> tuple[Tensor, Tensor]:
    """A table [N, S, …] and rows [T, …], both by lanes of s rows each: views."""
    whole = table.view(-1, s, *table.shape[2:]) if s != table.shape[1] else table
    return whole, rows.view(-1, s, *rows.shape[1:])
