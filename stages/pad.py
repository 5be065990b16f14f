"""Stage ``pad``: the window [tail, d1 … dK] of each slot, padded to whole chunks.

Knows: which rows are active. Does not know: how wide a chunk is cut, who verifies.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, StageContext


class Pad:
    """window[n] = tail, drafts, then zeros; positions[n] = position + column where active, else -1.

    Columns 0 … depth are active; depth -1 means that nobody is in the slot: no column is. A call may build a part of
    the window only: columns ``call.start`` on, as many as its outputs have, from the drafts of these columns.
    """

    signature = Signature(
        inputs=(
            Port("tail", ("N",), "int64"),
            Port("drafts", ("N", "K"), "int64", optional=True),
            Port("position", ("N",), "int64"),
            Port("depth", ("N",), "int64"),
        ),
        outputs=(
            Port("window", ("N", "W"), "int64"),
            Port("positions", ("N", "W"), "int64"),
            Port("live", ("N",), "bool", optional=True),
            Port("accepted", ("N",), "int64", optional=True),
        ),
        shift=(("drafts", 1),),
    )

    def __init__(self, context: StageContext) -> None:
        self._column = torch.arange(context.dims["W"], device=context.device)

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        tail, position, depth, drafts = (inputs[k] for k in ("tail", "position", "depth", "drafts"))
        window = outputs["window"]
        column = self._column[call.start : call.start + window.shape[1]]
        active = column <= depth[:, None]  # [N, W] or the part of it
        window.zero_()
        first = 0 if call.start else 1
        if first:
            window[:, 0] = tail
        if drafts is not None and drafts.shape[1]:
            window[:, first : first + drafts.shape[1]] = drafts
        window.masked_fill_(~active, 0)
        outputs["positions"].copy_(torch.where(active, position[:, None] + column, -1))
        if "live" in outputs:
            torch.ge(depth, 0, out=outputs["live"])
        if "accepted" in outputs:
            outputs["accepted"].zero_()
