"""What a request's drafter has seen, what its next step tells it, and when that is not enough.

Knows: rows of drafters' caches. Does not know: how a row is computed. It is a matter of acceptance alone: a drafter
that missed rows drafts worse, and no token changes.

An MTP layer's row p needs the target's streams at p, which the step before has left for the rows that it committed. A
draft model's row p needs the token at p, and the journal has them all. Steps without drafts do not run the drafter. So
an MTP layer misses all rows but those of the last step, which the next step brings; a draft model may be given up to
K+1 tokens by the next step. What is missing beyond that is filled, as a prompt is, before the request drafts again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftline.graph.core import Graph

from .deployment import Lookup, models_of, needs_mtp
from .request import Live


@dataclass(frozen=True)
class CatchUp:
    """``kind``: what drafts. ``most``: tokens that a step can tell a drafter, M."""

    kind: Literal["none", "mtp", "model"]
    most: int

    @classmethod
    def of(cls, graph: Graph, lookup: Lookup, most: int) -> CatchUp:
        """For the drafter of a step."""
        if "draft_model" in models_of(graph, lookup):
            return cls("model", most)
        return cls("mtp" if needs_mtp(graph) else "none", most)

    @property
    def own_model(self) -> bool:
        """Whether the drafter can be filled without the target."""
        return self.kind == "model"

    def can_draft(self, live: Live) -> bool:
        """False for an MTP layer after a prompt of one token: it has no streams to start from yet."""
        return self.kind != "mtp" or live.num_recent > 0

    def behind(self, live: Live) -> bool:
        """Whether rows are missing that a step cannot bring."""
        if self.kind == "model":
            return live.num_recent > self.most
        return self.kind == "mtp" and live.seen < len(live.tokens) - 1 - live.num_recent

    def filled(self, live: Live) -> None:
        """All rows before the tail are there; an MTP layer has the streams of the last of them."""
        live.seen = len(live.tokens) - 1
        live.num_recent = {"none": 0, "mtp": min(live.seen, 1), "model": 1}[self.kind]

    def stepped(self, live: Live, depth: int | None, new: int) -> None:
        """After a step of ``depth`` drafts with ``new`` tokens that are not in the journal yet; None: a step that ran
        no drafter."""
        tail = len(live.tokens) - 1
        if self.kind == "model":
            if depth:
                # Rows of the tail and of all drafts but the last were run; what was rejected does not count.
                live.seen = tail + min(new, depth)
            live.num_recent = tail + 1 + new - live.seen
            return
        if depth is not None and not self.behind(live):
            live.seen = tail
        live.num_recent = new
