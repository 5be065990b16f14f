"""Rows of a step's verify calls: how many stood for somebody. Knows: layouts, drafts, acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftline.compiler.plan import Plan
from draftline.stages.core import Packed

from .request import Live


@dataclass(frozen=True)
class Rows:
    """``waves`` verify calls of T rows each, in which ``real`` rows belonged to requests and ``pad`` to nobody."""

    waves: int
    real: int
    pad: int


def rows_of(plan: Plan, batch: Sequence[Live]) -> Rows:
    """The rows of a step that is done: a request is in chunk c if all its drafts before that were accepted. Packed, all
    active rows of all requests follow each other."""
    layout = plan.layout.chosen
    if isinstance(layout, Packed):
        real = sum(one.drafts + 1 for one in batch)
        waves = -(-real // layout.tile)
        return Rows(waves, real, waves * layout.tile - real)
    waves = real = 0
    for chunk in plan.layout.chunks:
        live = [one for one in batch if min(one.drafts, one.accepted) >= chunk.start]
        waves += -(-len(live) // layout.requests)
        real += sum(min(layout.rows, one.drafts + 1 - chunk.start) for one in live)
    return Rows(waves, real, waves * layout.tile - real)
