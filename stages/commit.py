"""Stage ``commit``: the tokens of this step, and the streams that the next step's drafter starts from.

Knows: accepted prefix + bonus token. Does not know: stop tokens, lengths, the journal.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, StageContext


class Commit:
    """count = accepted + 1 tokens per live slot: the accepted drafts, then the bonus token.

    Accepted drafts equal the target's own predictions, and the bonus is its prediction after the last of
    them, so tokens are simply predicted[:, :count]; -1 behind. Caches need no undo (see caches.core), so
    nothing else is done here: the driver moves the request's length by count.

    In a plan without drafts no drafter takes what the step before has left: the step's one row of streams goes behind
    the first num_recent rows of ``before``, where these are connected, and if all M are there the oldest gives way.
    """

    signature = Signature(
        inputs=(
            Port("window", ("N", "W"), "int64"),
            Port("predicted", ("N", "W"), "int64"),
            Port("accepted", ("N",), "int64"),
            Port("depth", ("N",), "int64"),
            Port("streams", ("N", "W", "H", "D"), "model", optional=True),
            Port("before", ("N", "M", "H", "D"), "model", optional=True),
            Port("num_recent", ("N",), "int64", optional=True),
        ),
        outputs=(
            Port("tokens", ("N", "M"), "int64"),
            Port("count", ("N",), "int64"),
            Port("streams", ("N", "M", "H", "D"), "model", optional=True),
        ),
    )

    def __init__(self, context: StageContext) -> None:
        self._kept = min(context.dims["W"], context.dims["M"])
        self._column = torch.arange(self._kept, device=context.device)
        self._drafts, self._row = context.dims["K"] > 0, torch.arange(context.dims["M"], device=context.device)

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        predicted, accepted, depth, streams = (inputs[k] for k in ("predicted", "accepted", "depth", "streams"))
        outputs["count"].copy_(torch.where(depth >= 0, accepted + 1, 0))
        outputs["tokens"].fill_(-1)
        mine = self._column < outputs["count"][:, None]
        outputs["tokens"][:, : self._kept] = torch.where(mine, predicted[:, : self._kept], -1)
        if streams is None or "streams" not in outputs:
            return
        before, num = inputs["before"], inputs["num_recent"]
        if before is not None and num is not None and not self._drafts:
            full = num >= len(self._row)
            kept = torch.where(full[:, None, None, None], before.roll(-1, 1), before)
            new = self._row == torch.where(full, num - 1, num)[:, None]  # [N, M]
            outputs["streams"].copy_(torch.where(new[..., None, None], streams[:, :1], kept))
        else:
            # Rows beyond count may never have been served by a wave; whatever lies there must not travel on.
            outputs["streams"].zero_()
            outputs["streams"][:, : self._kept] = torch.where(mine[..., None, None], streams[:, : self._kept], 0)
