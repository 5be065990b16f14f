"""Layouts: every B×S of a tile, the rules that drop some, the price that chooses among the rest.

Knows: tiles, windows, chunks, waves and prices. Does not know: graphs, buffers, kernels.
The price is explained in ``docs/layouts.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NewType

from draftline.compiler.costs import DISPATCH, HOP, CostTable
from draftline.compiler.plan import Chunk, LayoutChoice, Rejected, Rival
from draftline.graph.errors import PlanError
from draftline.stages.core import Layout

Tokens = NewType("Tokens", int)
"""A number of rows or drafts: T, K, K + 1."""

Requests = NewType("Requests", int)
"""A number of requests: B, N."""

Width = NewType("Width", int)
"""A number of consecutive window columns: S, W, an active width."""

MAX_ROWS = Width(8)
"""The most rows of one request in a tile."""


@dataclass(frozen=True)
class Rule:
    """``broken`` returns why the layout must not be used, or the empty string."""

    name: str
    broken: Callable[[Layout], str]


def _rows_capped(layout: Layout) -> str:
    return f"{layout.rows} rows per request, at most {MAX_ROWS} are served" if layout.rows > MAX_ROWS else ""


def _rows_power_of_two(layout: Layout) -> str:
    odd = layout.rows & (layout.rows - 1)
    return f"{layout.rows} rows per request is not a power of two" if odd else ""


RULES = (Rule("RowsCapped", _rows_capped), Rule("RowsPowerOfTwo", _rows_power_of_two))


@dataclass(frozen=True)
class Workload:
    """What the price counts besides the layout: the stages that run once per wave and once per chunk, the
    messages between devices per chunk, and what the rest of the step costs (microseconds, the same for every
    layout)."""

    wave_stages: tuple[str, ...] = ("verify",)
    chunk_stages: tuple[str, ...] = ("accept.greedy",)
    hops: int = 0
    fixed: float = 0.0


DEFAULT_WORKLOAD = Workload()


def enumerate_layouts(tile: Tokens) -> tuple[Layout, ...]:
    """Return every B×S with B·S = ``tile``, fewest rows first. Raises PlanError for a tile below 1."""
    if tile < 1:
        raise PlanError(f"a tile of {tile} rows: want at least 1 (8 and 16 are usual)")
    return tuple(Layout(tile // rows, rows) for rows in range(1, tile + 1) if tile % rows == 0)


def cut(drafts: Tokens, rows: Width) -> tuple[Chunk, ...]:
    """Return the C = ceil((K+1)/S) chunks of a window of ``drafts`` + 1 rows; the last may be part active."""
    window = drafts + 1
    return tuple(Chunk(index, start, min(rows, window - start)) for index, start in enumerate(range(0, window, rows)))


def waves(requests: Requests, layout: Layout) -> int:
    """Return ceil(n/B): verify calls that one chunk of ``requests`` live requests takes."""
    return -(-requests // layout.requests)


def price(layout: Layout, drafts: Tokens, costs: CostTable, work: Workload = DEFAULT_WORKLOAD) -> float:
    """Return what a step costs in microseconds: a lone request's step plus a request's share of a full one.

    Chunk c starts at column s_c and runs with probability a^s_c (all drafts before it were accepted):
    ``fixed + Σ_c a^s_c · (wave + chunk + wave / B)``.
    """
    wave = sum(costs.micros(stage, layout.tile) for stage in work.wave_stages)
    chunk = costs.micros(DISPATCH, layout.tile)
    if work.hops:
        chunk += work.hops * costs.micros(HOP, layout.tile)
    chunk += sum(costs.micros(stage, layout.tile) for stage in work.chunk_stages)
    runs = sum(costs.acceptance**c.start for c in cut(drafts, Width(layout.rows)))
    return work.fixed + runs * (wave + chunk + wave / layout.requests)


def choose(
    tile: Tokens,
    drafts: Tokens,
    requests: Requests,
    costs: CostTable,
    work: Workload = DEFAULT_WORKLOAD,
) -> LayoutChoice:
    """Return the cheapest layout of ``tile`` rows for K = ``drafts`` that breaks no rule, with its rivals.

    Equal prices: fewer rows win. Raises PlanError for K < 0, no slots, or if no layout keeps all rules.
    """
    if drafts < 0:
        raise PlanError(f"K={drafts}: the number of speculative tokens must be 0 or more")
    if requests < 1:
        raise PlanError(f"{requests} slots: want max_num_seqs of at least 1")
    rejected: list[Rejected] = []
    priced: list[tuple[float, int, Layout]] = []
    for layout in enumerate_layouts(tile):
        broken = [Rejected(layout, rule.name, why) for rule in RULES if (why := rule.broken(layout))]
        rejected += broken[:1]
        if not broken:
            priced.append((price(layout, drafts, costs, work), layout.rows, layout))
    if not priced:
        why = "; ".join(f"{r.layout} breaks {r.rule}" for r in rejected)
        raise PlanError(f"no layout of a tile of {tile} rows can be used: {why}")
    priced.sort()
    best_cost, _, best = priced[0]
    return LayoutChoice(
        chosen=best,
        chunks=cut(drafts, Width(best.rows)),
        waves_max=waves(requests, best),
        cost=best_cost,
        rejected=tuple(rejected),
        rivals=tuple(Rival(layout, cost, _why_not(layout, best, drafts)) for cost, _, layout in priced[1:]),
    )


def _why_not(layout: Layout, best: Layout, drafts: Tokens) -> str:
    """Return what the loser does worse, in the terms of the price."""
    mine, theirs = cut(drafts, Width(layout.rows)), cut(drafts, Width(best.rows))
    if len(mine) > len(theirs):
        return f"{len(mine)} chunks in sequence, not {len(theirs)}"
    return f"a wave serves {layout.requests} of the requests, not {best.requests}"
