"""Stages ``prefill.target`` and ``prefill.draft``: fill the caches for a prompt, P rows a call.

Knows: rows of prompts. Does not know: scheduling. A call may hold rows of several prompts: all calls have P rows
and a row does not feel its neighbours, so a prompt's cache is bitwise the same whoever shares the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .caches.core import copy_rings
from .core import Call, Inputs, StageContext
from .models.core import Drafter, Rows, Target
from .waves import merge_lanes


def _rows(inputs: Inputs, tokens: Tensor, pages: Tensor) -> Rows:
    positions, slots = inputs["positions"], inputs["slots"]
    return Rows(tokens.clamp(min=0), positions, slots, pages)


@contextmanager
def kept_rings(model: Target | Drafter, inputs: Inputs) -> Iterator[None]:
    """Before a call, copy the rings that ``restore`` [N] numbers into those of the slots, for slots whose prefix
    somebody else has computed; after it, copy the slots' own to those that ``keep`` [N] numbers. -1: not this slot."""
    restore, keep = inputs.get("restore"), inputs.get("keep")
    _copy(model, restore, True)
    yield
    _copy(model, keep, False)


def _copy(model: Target | Drafter, other: Tensor | None, restores: bool) -> None:
    # Few calls copy anything, and a copy of nothing would cost as much as a copy of all rings.
    if other is None or not bool((other >= 0).any()):
        return
    own = torch.arange(len(other), device=other.device)
    for ring, length in model.rings:
        copy_rings(ring, length, *((other, own) if restores else (own, other)))


class PrefillTarget:
    """tokens, positions and slots [P] (-1: pad row) to residual streams [P, H, D]; rows [1] counts real rows."""

    signature = Signature(
        inputs=(
            Port("tokens", ("P",), "int64"),
            Port("positions", ("P",), "int64"),
            Port("slots", ("P",), "int64"),
            Port("pages", ("N", "G"), "int64"),
            Port("restore", ("N",), "int64", optional=True),
            Port("keep", ("N",), "int64", optional=True),
        ),
        outputs=(Port("hidden", ("P", "H", "D"), "model", optional=True), Port("rows", (1,), "int64")),
        uses=("target",),
    )

    def __init__(self, context: StageContext) -> None:
        self._target = context.target

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        tokens, pages, positions = inputs["tokens"], inputs["pages"], inputs["positions"]
        with kept_rings(self._target, inputs):
            hidden = self._target.forward(_rows(inputs, tokens, pages))
        outputs["rows"].copy_((positions >= 0).sum().view(1))
        if "hidden" in outputs:
            outputs["hidden"].copy_(hidden)


class PrefillDraft:
    """The MTP layer over the same rows: following [P] is the token after each row. Column 0 of streams
    [N, M, H, D] becomes the target's streams of each slot's newest row, where drafting will start."""

    signature = Signature(
        inputs=(
            Port("hidden", ("P", "H", "D"), "model"),
            Port("following", ("P",), "int64"),
            Port("positions", ("P",), "int64"),
            Port("slots", ("P",), "int64"),
            Port("streams", ("N", "M", "H", "D"), "model"),
            Port("restore", ("N",), "int64", optional=True),
            Port("keep", ("N",), "int64", optional=True),
        ),
        outputs=(Port("streams", ("N", "M", "H", "D"), "model"),),
        uses=("drafter",),
    )

    def __init__(self, context: StageContext) -> None:
        self._drafter = context.drafter
        n = context.dims["N"]
        self._slots = torch.arange(n, device=context.device)
        self._no_pages = torch.full((n, 1), -1, dtype=torch.int64, device=context.device)

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        hidden, following, positions, slots, streams = (
            inputs[k] for k in ("hidden", "following", "positions", "slots", "streams")
        )
        with kept_rings(self._drafter, inputs):
            self._drafter.forward(_rows(inputs, following, self._no_pages), hidden)
        # Newest row of each slot in this call: the one with the largest position.
        at = torch.where(slots == self._slots[:, None], positions, -1)  # [N, P]
        newest, row = at.max(1)
        outputs["streams"].copy_(streams)
        merge_lanes(torch.where(newest >= 0, self._slots, -1), (outputs["streams"][:, 0], hidden[row]))
