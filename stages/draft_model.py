"""Stages ``draft.model`` and ``prefill.draft_model``: drafts from a language model of its own, smaller than the target.

Knows: catching up and feeding itself. Does not know: which model drafts, acceptance. Source: Leviathan et al. 2023
(arXiv:2211.17192).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, StageContext
from .models.core import Rows
from .prefill import kept_rings


class DraftModel:
    """Iteration 0 runs the committed tokens that the draft model has not seen and drafts d1 from the newest, which is
    the tail; iteration k runs draft d(k) at position + k and drafts d(k+1).

    A row at position p holds the token at p, and its cache is position-addressed: rows of rejected drafts are
    overwritten before anything reads them, and rows of accepted ones are right as they are. So what is left to catch
    up is the tail, and the last draft where all were accepted: d(K) is proposed and never run. A slot with fewer drafts
    than this iteration is a pad row, and so is one whose verification has stopped already (``live`` false).
    """

    signature = Signature(
        inputs=(
            Port("token", ("N",), "int64"),
            Port("position", ("N",), "int64"),
            Port("depth", ("N",), "int64"),
            Port("recent", ("N", "M"), "int64"),
            Port("num_recent", ("N",), "int64"),
            Port("pages", ("N", "G"), "int64"),
            Port("live", ("N",), "bool", optional=True),
        ),
        outputs=(Port("token", ("N",), "int64"),),
        uses=("draft_model",),
        cancel="live",
    )

    def __init__(self, context: StageContext) -> None:
        self._model = context.draft_model
        n, m = context.dims["N"], context.dims["M"]
        self._slots = torch.arange(n, device=context.device)
        self._column = torch.arange(m, device=context.device)

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        token, position, depth, pages = (inputs[k] for k in ("token", "position", "depth", "pages"))
        drafting = call.iteration < depth
        if inputs["live"] is not None:
            drafting = drafting & inputs["live"]
        if call.iteration == 0:
            streams = self._catch_up(position, drafting, inputs)
        else:
            at = torch.where(drafting, position + call.iteration, -1)
            slots = torch.where(drafting, self._slots, -1)
            streams = self._model.forward(Rows(torch.where(drafting, token, 0), at, slots, pages))
        outputs["token"].copy_(self._model.greedy(streams))

    def _catch_up(self, position: Tensor, drafting: Tensor, inputs: Inputs) -> Tensor:
        """Run the last num_recent tokens of each slot that drafts, the tail among them, N·M rows with their pad rows;
        gives the streams [N, H, D] of the tails."""
        recent, num = inputs["recent"], inputs["num_recent"]
        n, m = recent.shape
        real = (self._column < num[:, None]) & drafting[:, None]  # [N, M]
        at = torch.where(real, (position + 1 - num)[:, None] + self._column, -1)
        slots = torch.where(real, self._slots[:, None], -1)
        rows = Rows(torch.where(real, recent, 0).flatten(), at.flatten(), slots.flatten(), inputs["pages"])
        out = self._model.forward(rows)
        return out.view(n, m, *out.shape[1:])[self._slots, (num - 1).clamp(min=0)]


class PrefillDraftModel:
    """tokens, positions and slots [P] (-1: pad row) into the draft model's caches; rows [1] counts real rows."""

    signature = Signature(
        inputs=(
            Port("tokens", ("P",), "int64"),
            Port("positions", ("P",), "int64"),
            Port("slots", ("P",), "int64"),
            Port("pages", ("N", "G"), "int64"),
            Port("restore", ("N",), "int64", optional=True),
            Port("keep", ("N",), "int64", optional=True),
        ),
        outputs=(Port("rows", (1,), "int64"),),
        uses=("draft_model",),
    )

    def __init__(self, context: StageContext) -> None:
        self._model = context.draft_model

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        tokens, positions, slots, pages = (inputs[k] for k in ("tokens", "positions", "slots", "pages"))
        with kept_rings(self._model, inputs):
            self._model.forward(Rows(tokens.clamp(min=0), positions, slots, pages))
        outputs["rows"].copy_((slots >= 0).sum().view(1))
