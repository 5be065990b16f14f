"""Stage ``accept.greedy``: the longest prefix of drafts that the target would have said itself.

Knows: the accept rule, whole, in one function. Does not know: how tokens were drafted or scored.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, StageContext


def accept_prefix(
    window: Tensor, predicted: Tensor, depth: Tensor, live: Tensor, accepted: Tensor, start: int
) -> tuple[Tensor, Tensor]:
    """The accept rule for the chunk of rows start … start+S-1 (Leviathan et al. 2023, arXiv:2211.17192, at
    temperature 0: a draft stands if and only if it is the target's own token).

    window [N, W], predicted [N, S], depth [N], live [N] bool, accepted [N]. Row i's prediction is judged
    against the draft at window column i + 1, so a chunk's last row judges the next chunk's first draft.
    Gives live (requests whose next chunk must be verified) and accepted (drafts accepted so far).
    """
    s = predicted.shape[1]
    drafts = torch.nn.functional.pad(window, (0, 1), value=-1)[:, start + 1 : start + s + 1]  # [N, S]
    has_draft = start + torch.arange(s, device=window.device) < depth[:, None]
    run = ((drafts == predicted) & has_draft).long().cumprod(1)  # 1 up to the first mismatch, then 0
    accepted = torch.where(live, accepted + run.sum(1), accepted)
    return live & (run[:, -1] == 1), accepted


class AcceptGreedy:
    """See ``accept_prefix``."""

    signature = Signature(
        inputs=(
            Port("window", ("N", "W"), "int64"),
            Port("predicted", ("N", "S"), "int64"),
            Port("depth", ("N",), "int64"),
            Port("live", ("N",), "bool"),
            Port("accepted", ("N",), "int64"),
        ),
        outputs=(Port("live", ("N",), "bool"), Port("accepted", ("N",), "int64")),
        ahead=(("window", 1),),
    )

    def __init__(self, context: StageContext) -> None:
        pass

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        window, predicted, depth, live, accepted = (
            inputs[k] for k in ("window", "predicted", "depth", "live", "accepted")
        )
        live, accepted = accept_prefix(window, predicted, depth, live, accepted, call.start)
        outputs["live"].copy_(live)
        outputs["accepted"].copy_(accepted)
