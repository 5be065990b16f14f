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

    A step at K=0 has no draft call that would bring the drafter up to date. Its one row is put behind the
    ``num_recent`` rows of ``recent_streams``, which wait with it for the next draft call; of more than M rows the
    oldest goes.
    """

    signature = Signature(
        inputs=(
            Port("window", ("N", "W"), "int64"),
            Port("predicted", ("N", "W"), "int64"),
            Port("accepted", ("N",), "int64"),
            Port("depth", ("N",), "int64"),
            Port("streams", ("N", "W", "H", "D"), "model", optional=True),
            Port("recent_streams", ("N", "M", "H", "D"), "model", optional=True),
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
        self._drafts = context.dims["K"] > 0

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        predicted, accepted, depth, streams = (inputs[k] for k in ("predicted", "accepted", "depth", "streams"))
        outputs["count"].copy_(torch.where(depth >= 0, accepted + 1, 0))
        outputs["tokens"].fill_(-1)
        mine = self._column < outputs["count"][:, None]
        outputs["tokens"][:, : self._kept] = torch.where(mine, predicted[:, : self._kept], -1)
        if streams is None or "streams" not in outputs:
            return
        recent, num = inputs.get("recent_streams"), inputs.get("num_recent")
        if self._drafts or recent is None or num is None:
            # Rows beyond count may never have been served by a wave; whatever lies there must not travel on.
            outputs["streams"].zero_()
            outputs["streams"][:, : self._kept] = torch.where(mine[..., None, None], streams[:, : self._kept], 0)
        else:
            outputs["streams"].copy_(append_row(recent, num, streams[:, 0]))


def append_row(recent: Tensor, num: Tensor, row: Tensor) -> Tensor:
    """recent [N, M, H, D] with row [N, H, D] put in column num [N]; if all M are taken, the oldest gives way."""
    m = recent.shape[1]
    full = (num >= m)[:, None, None, None]
    kept = torch.where(full, recent.roll(-1, 1), recent)
    here = torch.arange(m, device=recent.device) == num.clamp(max=m - 1)[:, None]  # [N, M]
    return torch.where(here[..., None, None], row[:, None], kept)
