"""The cost table: what one call of a stage costs at a width, assumed until it is measured.

Knows: microseconds per (stage, width) and the acceptance that a deployment expects. Does not know: layouts,
graphs, how a cost is measured.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from draftline.compiler.plan import CostEntry
from draftline.graph.errors import PlanError, nearest

DISPATCH = "dispatch"
"""Pseudo stage: starting one chunk (read ``live``, form waves, launch)."""

HOP = "hop"
"""Pseudo stage: one message between two devices."""


@dataclass(frozen=True)
class CostTable:
    """``entries`` in microseconds; ``acceptance`` is the probability that the target accepts a draft, given
    that it accepted all drafts before it (0 to 1)."""

    entries: tuple[CostEntry, ...]
    acceptance: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.acceptance <= 1.0:
            raise PlanError(f"acceptance {self.acceptance} of the cost table is not between 0 and 1")
        for entry in self.entries:
            if not 0.0 <= entry.micros < float("inf"):
                raise PlanError(f"cost of ({entry.stage}, {entry.width}) is {entry.micros}, want a finite time")

    def entry(self, stage: str, width: int) -> CostEntry:
        """Return the most specific entry: (stage, width), (stage, any), those of the stage that it is a kind of
        (``verify`` of ``verify.rejection``), (any, any). Raises PlanError."""
        table = {(e.stage, e.width): e for e in self.entries}
        parts = stage.split(".")
        kinds = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        for wanted in (*((kind, w) for kind in kinds for w in (width, 0)), ("*", 0)):
            if wanted in table:
                return table[wanted]
        raise PlanError(
            f"the cost table has no entry for stage {stage!r} at width {width}"
            + nearest(stage, {e.stage for e in self.entries})
        )

    def micros(self, stage: str, width: int) -> float:
        """Return the cost of one call in microseconds. Raises PlanError."""
        return self.entry(stage, width).micros

    @property
    def key(self) -> str:
        """A hash of the table's content; the order of entries does not matter."""
        rows = sorted((e.stage, e.width, e.micros, e.source) for e in self.entries)
        return hashlib.sha256(repr((rows, self.acceptance)).encode()).hexdigest()


DEFAULT_COSTS = CostTable(
    entries=(
        CostEntry("*", 0, 20.0, "assumed"),
        CostEntry("verify", 0, 1000.0, "assumed"),
        CostEntry("draft.mtp", 0, 100.0, "assumed"),
        CostEntry(DISPATCH, 0, 50.0, "assumed"),
        CostEntry(HOP, 0, 25.0, "assumed"),
    ),
    acceptance=0.85,
)
"""Ratios, not promises: a tile costs the same at every width, because reading the weights dominates it, and a
drafter is a tenth of the model. Acceptance: DeepSeek-V3 (arXiv 2412.19437, section 5.4.3) reports 0.85 to
0.90 for the second token."""
