"""Stage ``verify``: one wave of one chunk through the target. Knows: lanes and rows. Does not know: acceptance."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, Packed, StageContext
from .grammar.rows import Constraints
from .models.core import Rows
from .sampling.logprobs import logprobs
from .sampling.sampler import Before, Drafted, WaveRows, pick
from .sampling.wire import Tenant, Tenants
from .waves import lane_slots, merge_lanes

INPUTS = (
    Port("tokens", ("N", "S"), "int64"),
    Port("positions", ("N", "S"), "int64"),
    Port("pages", ("N", "G"), "int64"),
    Port("live", ("N",), "bool"),
    Port("sampling", ("N", "Q"), "int64", optional=True),
    Port("history", ("N", "L"), "int64", optional=True),
    Port("window", ("N", "W"), "int64", optional=True),
)
OUTPUTS = (
    Port("predicted", ("N", "S"), "int64"),
    Port("streams", ("N", "S", "H", "D"), "model", optional=True),
    Port("logprob_ids", ("N", "S", "Y"), "int64", optional=True),
    Port("logprobs", ("N", "S", "Y"), "float32", optional=True),
)


class Verify:
    """predicted[n, s] is the target's own token after row s of slot n; streams are its residual streams.

    A wave is always the same T-row call. In a layout B×S it has B lanes of S rows, each lane a live slot's. In a packed
    layout it has T lanes of one row, each lane a row that is active in a live slot. Lanes without anybody and columns
    beyond the active width are pad rows with slot and position -1.

    The token is the likeliest one, or one that is drawn as ``sampling`` says (see ``sampling/wire.py``), which with
    penalties or a grammar needs ``history``, the committed tokens, and the whole ``window``; -1 where what a request
    asks leaves none. Of slots that ask, logprobs[n, s] holds the token's log-probability and those of the likeliest
    tokens, logprob_ids[n, s] its rank and their ids.
    """

    signature = Signature(
        inputs=INPUTS,
        outputs=OUTPUTS,
        per_wave=True,
        packs="positions",
        uses=("target",),
        ahead=(("window", 0),),  # a row sees the drafts before it
    )

    def __init__(self, context: StageContext) -> None:
        self._target = context.target
        self._layout = context.layout
        self._packed = isinstance(context.layout, Packed)
        self._tenants = Tenants()
        self._constraints = Constraints(context.grammars)

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
        tenants = self._tenants.of(inputs.get("sampling"))
        if tenants:
            columns = ((at % per_slot * s)[:, None] + torch.arange(s, device=at.device)).flatten() + call.start
            predicted = self._sampled(streams, tenants, WaveRows(slots, where, columns), call, inputs, outputs)
        else:
            predicted = self._target.greedy(streams)
            if inputs.get("sampling") is not None and int(lanes[0]) < 0:
                # Only a rehearsal serves nobody: whatever a capture backend captures, it meets now.
                self._target.logits(streams)
        results = [(outputs["predicted"], predicted)]
        if "streams" in outputs:
            results.append((outputs["streams"], streams))
        merge_lanes(lanes, *(_by_lane(table, rows, s) for table, rows in results))

    def _sampled(
        self,
        streams: Tensor,
        tenants: Mapping[int, Tenant],
        wave: WaveRows,
        call: Call,
        inputs: Inputs,
        outputs: Mapping[str, Tensor],
    ) -> Tensor:
        logits = self._target.logits(streams)
        before = Before(inputs.get("history"), inputs.get("window"))
        allowed = self._constraints.allowed(tenants, wave, before, logits.shape[1])
        predicted = pick(logits, tenants, wave, before, self._drafted(inputs), allowed)
        if "logprobs" in outputs:
            slots = wave.slots.tolist()
            asked = [r for r, n in enumerate(slots) if n in tenants and tenants[n].params.logprobs is not None]
            if asked:
                top = max(tenants[slots[r]].params.logprobs or 0 for r in asked)
                numbers, ids = logprobs(logits[asked], predicted[asked].clamp(min=0), top)
                place = wave.slots[asked], wave.columns[asked] - call.start
                outputs["logprobs"][..., : numbers.shape[1]][place] = numbers
                outputs["logprob_ids"][..., : ids.shape[1]][place] = ids
        return predicted

    def _drafted(self, inputs: Inputs) -> Drafted | None:
        """How the drafts were drawn; None: each is its drafter's likeliest, or looked up."""
        return None


class VerifyRejection(Verify):
    """``verify`` for drafts that were drawn: draft_probs[n, k] is the law that draft k + 1 of slot n was drawn by. A
    row judges the draft that follows it, so a chunk also needs the first draft of the next one."""

    signature = Signature(
        inputs=(
            *(Port(p.name, p.shape, p.dtype, p.optional and p.name != "window") for p in INPUTS),
            Port("depth", ("N",), "int64"),
            Port("draft_probs", ("N", "K", "V"), "float32"),
        ),
        outputs=OUTPUTS,
        per_wave=True,
        packs="positions",
        uses=("target",),
        ahead=(("window", 1),),
    )

    def _drafted(self, inputs: Inputs) -> Drafted | None:
        return Drafted(inputs["window"], inputs["depth"], inputs["draft_probs"])


def _by_lane(table: Tensor, rows: Tensor, s: int) -> tuple[Tensor, Tensor]:
    """A table [N, S, …] and rows [T, …], both by lanes of s rows each: views."""
    whole = table.view(-1, s, *table.shape[2:]) if s != table.shape[1] else table
    return whole, rows.view(-1, s, *rows.shape[1:])
