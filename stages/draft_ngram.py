"""Stage ``draft.ngram``: prompt lookup. Knows: the tokens so far. Does not know: any model.

The longest suffix of max_ngram … min_ngram tokens that occurred before is looked up, its latest earlier
occurrence wins, and what followed it there is the draft (prompt lookup decoding, Saxena 2023).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature
from draftline.graph.errors import GraphError

from .core import Call, Inputs, StageContext


class DraftNgram:
    """history [N, L] holds the tokens at positions 0 … position; drafts [N, K]; depth [N] is lowered to the
    number of drafts found, 0 where the suffix is new."""

    signature = Signature(
        inputs=(
            Port("history", ("N", "L"), "int64"),
            Port("position", ("N",), "int64"),
            Port("depth", ("N",), "int64"),
        ),
        outputs=(Port("drafts", ("N", "K"), "int64"), Port("depth", ("N",), "int64")),
        options=(("max_ngram", 4), ("min_ngram", 1)),
    )

    def __init__(self, context: StageContext, max_ngram: int = 4, min_ngram: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise GraphError(
                f"draft.ngram: min_ngram={min_ngram}, max_ngram={max_ngram}; 1 ≤ min_ngram ≤ max_ngram is wanted"
            )
        self._sizes = range(min_ngram, max_ngram + 1)
        self._at = torch.arange(context.dims["L"], device=context.device)
        self._ahead = torch.arange(1, context.dims["K"] + 1, device=context.device)

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        history, position, depth = (inputs[k] for k in ("history", "position", "depth"))
        last = position.clamp(min=0)[:, None]
        # same[n, j]: how many tokens ending at j equal those ending at the tail, counted up to max_ngram.
        same = torch.zeros_like(history)
        alive = self._at < last  # an earlier occurrence ends before the tail
        for back in range(self._sizes[-1]):
            suffix = history.gather(1, (last - back).clamp(min=0))
            shifted = torch.nn.functional.pad(history, (back, 0), value=-1)[:, : history.shape[1]]
            alive = alive & (shifted == suffix) & (self._at >= back) & (last >= back)
            same = same + alive
        # Longest match first, latest second; one number orders both.
        score = torch.where(same >= self._sizes[0], same * history.shape[1] + self._at, -1)
        best, end = score.max(1)
        source = end[:, None] + self._ahead  # [N, K]
        known = (source <= last) & (best >= 0)[:, None]
        drafts = history.gather(1, source.clamp(max=history.shape[1] - 1))
        outputs["drafts"].copy_(torch.where(known, drafts, 0))
        outputs["depth"].copy_(torch.minimum(depth, known.sum(1)))
