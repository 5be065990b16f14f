"""Stage ``draft.mtp``: one draft token per slot from the model's MTP layer, all slots in one call.

Knows: catching up and feeding itself. Does not know: which model the MTP layer belongs to, acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, StageContext
from .grammar.course import Course, masked
from .models.core import Rows
from .sampling.processors import OUT


class DraftMtp:
    """Iteration 0 brings the MTP cache up to date and drafts d1; iteration k drafts d(k+1) from its own output.

    Catching up runs every row that the last step committed with the *target's* streams: rows drafted before
    were written from the drafter's own streams, which costs acceptance if it stays (DESIGN §4.5). It is the
    same call that gives d1, so a step makes K calls. A slot with fewer drafts than this iteration is a pad row,
    and so is one whose verification has stopped already (``live`` false).

    Where ``sampling`` and ``history`` are connected, a request with a grammar drafts what can follow in it.
    """

    signature = Signature(
        inputs=(
            Port("token", ("N",), "int64"),
            Port("position", ("N",), "int64"),
            Port("depth", ("N",), "int64"),
            Port("recent", ("N", "M"), "int64"),
            Port("num_recent", ("N",), "int64"),
            Port("streams", ("N", "M", "H", "D"), "model"),
            Port("hidden", ("N", "H", "D"), "model", optional=True),
            Port("live", ("N",), "bool", optional=True),
            Port("sampling", ("N", "Q"), "int64", optional=True),
            Port("history", ("N", "L"), "int64", optional=True),
        ),
        outputs=(Port("token", ("N",), "int64"), Port("hidden", ("N", "H", "D"), "model")),
        uses=("drafter",),
        cancel="live",
    )

    def __init__(self, context: StageContext) -> None:
        self._drafter, self._vocab_size = context.drafter, context.dims.get("V", 0)
        self._course = Course(context.grammars)
        n, m = context.dims["N"], context.dims["M"]
        self._slots = torch.arange(n, device=context.device)
        self._column = torch.arange(m, device=context.device)
        # The block table is the target's; an MTP layer has a ring only.
        self._no_pages = torch.full((n, 1), -1, dtype=torch.int64, device=context.device)

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        token, position, depth, hidden = (inputs[k] for k in ("token", "position", "depth", "hidden"))
        if hidden is None:
            last = self._catch_up(position, depth, inputs)
        else:
            drafting = call.iteration < depth
            if inputs["live"] is not None:
                drafting = drafting & inputs["live"]
            # Row p of the drafter holds the streams at p and the token at p + 1.
            at = torch.where(drafting, position - 1 + call.iteration, -1)
            slots = torch.where(drafting, self._slots, -1)
            last = self._drafter.forward(Rows(token, at, slots, self._no_pages), hidden)
        outputs["hidden"].copy_(last)
        self._propose(last, self._course.masks(call, inputs), call, inputs, outputs)

    def _propose(
        self, last: Tensor, masks: Mapping[int, Tensor], call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]
    ) -> None:
        """A draft per slot from the drafter's streams [N, H, D]; ``masks``: by slot, what it may be [V]."""
        if masks:
            outputs["token"].copy_(masked(self._whole(self._drafter.logits(last)), masks).argmax(1))
            return
        outputs["token"].copy_(self._drafter.greedy(last))
        if inputs["sampling"] is not None and int(inputs["position"].max()) < 0:
            self._drafter.logits(last)  # only a rehearsal serves nobody; see stage verify

    def _whole(self, logits: Tensor) -> Tensor:
        """Logits [N, V'] of a draft vocabulary as [N, V]: what it lacks is never drafted."""
        ids = self._drafter.vocab
        if ids is None:
            return logits
        return logits.new_full((len(logits), self._vocab_size), OUT).index_copy_(1, ids, logits)

    def _catch_up(self, position: Tensor, depth: Tensor, inputs: Inputs) -> Tensor:
        """Run the last step's rows, N·M of them, and give the streams [N, H, D] of each slot's newest."""
        recent, num, streams = (inputs[k] for k in ("recent", "num_recent", "streams"))
        n, m = recent.shape
        real = (self._column < num[:, None]) & (depth[:, None] >= 0)  # [N, M]
        at = torch.where(real, (position - num)[:, None] + self._column, -1)
        slots = torch.where(real, self._slots[:, None], -1)
        rows = Rows(torch.where(real, recent, 0).flatten(), at.flatten(), slots.flatten(), self._no_pages)
        out = self._drafter.forward(rows, streams.flatten(0, 1)).view(n, m, *streams.shape[2:])
        return out[self._slots, (num - 1).clamp(min=0)]
