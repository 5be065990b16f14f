"""What a request's drafter has seen, what its next step tells it, and when that is not enough.

Knows: rows of drafters' caches. Does not know: how a row is computed. It is a matter of acceptance alone: a drafter
that missed rows drafts worse, and no token changes.

An MTP layer's row p needs the target's streams at p, which the step before has left for the rows that it committed. A
draft model's row p needs the token at p, and the journal has them all. Steps at K=0 do not run the drafter: up to
M = K+1 rows wait for the next step that drafts (streams in the graph's state, see ``stages/commit.py``; of a graph that
does not keep them, only those of the last step). What is missing beyond that is filled, as a prompt is, before the
request drafts again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftline.graph.core import Graph

from .ahead import ALL, MORE, NOTHING, UNSEEN
from .deployment import Lookup, keeps_recent, models_of, needs_mtp
from .request import Live


@dataclass(frozen=True)
class CatchUp:
    """``kind``: what drafts. ``most``: tokens that a step can tell a drafter, M. ``keeps``: whether rows of steps
    at K=0 wait."""

    kind: Literal["none", "mtp", "model"]
    most: int
    keeps: bool = False

    @classmethod
    def of(cls, graph: Graph, lookup: Lookup, most: int) -> CatchUp:
        """For the drafter of a step."""
        if "draft_model" in models_of(graph, lookup):
            return cls("model", most)
        return cls("mtp" if needs_mtp(graph) else "none", most, keeps_recent(graph))

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

    def rule(self, depth: int | None, cap: int) -> int | None:
        """What a drafter is told after a step of ``depth`` drafts (None: that ran no drafter) in a step that may have
        ``cap``, before the step's tokens are known (``ahead.py``); None: that depends on what was missed before."""
        if self.kind == "none":
            return NOTHING
        if self.kind == "model":
            return UNSEEN if depth else None
        if depth is not None:
            return ALL
        return None if cap else MORE if self.keeps else ALL

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
        if depth is None:
            live.num_recent = min(live.num_recent + new if self.keeps else new, self.most)
            return
        if not self.behind(live):
            live.seen = tail
        live.num_recent = new
