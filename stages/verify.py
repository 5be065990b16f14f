"""Stage ``verify``: one wave of one chunk through the target. Knows: lanes and rows. Does not know: acceptance."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, StageContext
from .models.core import Rows
from .waves import lane_slots, merge_lanes


class Verify:
    """predicted[n, s] is the target's own token after row s of slot n; streams are its residual streams.

    A wave is always the same T-row call: lanes without a slot and columns beyond the active width are pad
    rows with slot and position -1.
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
        uses=("target",),
    )

    def __init__(self, context: StageContext) -> None:
        self._target = context.target
        self._layout = context.layout

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        tokens, positions, pages, live = (inputs[k] for k in ("tokens", "positions", "pages", "live"))
        b, s = self._layout.requests, self._layout.rows
        lanes = lane_slots(live, call.wave, b)
        at = lanes.clamp(min=0)
        where = torch.where(lanes[:, None] >= 0, positions[at], -1).flatten()  # [T]
        slots = torch.where(where >= 0, lanes.repeat_interleave(s), -1)
        rows = Rows(tokens[at].flatten(), where, slots, pages)
        streams = self._target.forward(rows)
        predicted = self._target.greedy(streams)
        merge_lanes(outputs["predicted"], lanes, predicted.view(b, s))
        if "streams" in outputs:
            merge_lanes(outputs["streams"], lanes, streams.view(b, s, *streams.shape[1:]))
