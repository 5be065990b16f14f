"""Layouts: every B×S of a tile and the packed one, the rules that drop some, the price that chooses among the rest.

Knows: tiles, windows, chunks, waves and prices. Does not know: graphs, buffers, kernels.
The price is explained in ``docs/layouts.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NewType, TypeVar

from draftline.compiler.costs import DISPATCH, HOP, CostTable
from draftline.compiler.plan import Chunk, Kinds, LayoutChoice, Rejected, Rival
from draftline.graph.errors import PlanError
from draftline.stages.core import AnyLayout, Layout, Packed

Tokens = NewType("Tokens", int)
"""A number of rows or drafts: T, K, K + 1."""

Requests = NewType("Requests", int)
"""A number of requests: B, N."""

Width = NewType("Width", int)
"""A number of consecutive window columns: S, W, an active width."""

MAX_ROWS = Width(8)
"""The most rows of one request in a tile."""


Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Rule(Generic[Facts]):
    """``broken`` returns why the layout must not be used, or the empty string."""

    name: str
    broken: Callable[[Facts], str]


def _rows_capped(layout: Layout) -> str:
    return f"{layout.rows} rows per request, at most {MAX_ROWS} are served" if layout.rows > MAX_ROWS else ""


def _rows_power_of_two(layout: Layout) -> str:
    odd = layout.rows & (layout.rows - 1)
    return f"{layout.rows} rows per request is not a power of two" if odd else ""


RULES: tuple[Rule[Layout], ...] = (Rule("RowsCapped", _rows_capped), Rule("RowsPowerOfTwo", _rows_power_of_two))
"""What a layout B×S must keep: they are about its blocks of S rows."""


@dataclass(frozen=True)
class Packing:
    """What a packed layout depends on. ``slot_per_row``: the model's kernels take a slot and a position for each row.
    ``whole``: stages that run once per wave and serve whole requests only. ``overlap``: later drafts are wanted to be
    made while the first chunk is verified."""

    slot_per_row: bool = False
    whole: tuple[str, ...] = ()
    overlap: bool = False


def _rows_need_slots(packing: Packing) -> str:
    return "" if packing.slot_per_row else "the model's kernels do not take a slot and a position for each row"


def _stages_need_rows(packing: Packing) -> str:
    if not packing.whole:
        return ""
    return f"{', '.join(packing.whole)} serves whole requests only: its signature names no input in 'packs'"


def _overlap_needs_chunks(packing: Packing) -> str:
    return "overlap needs a chunk after the first, and a packed window is one chunk" if packing.overlap else ""


PACKED_RULES: tuple[Rule[Packing], ...] = (
    Rule("RowsNeedSlots", _rows_need_slots),
    Rule("StagesNeedRows", _stages_need_rows),
    Rule("OverlapNeedsChunks", _overlap_needs_chunks),
)
"""What a packed layout must keep."""


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


def waves(requests: Requests, layout: AnyLayout) -> int:
    """Return the verify calls that one chunk of ``requests`` live requests takes: ceil(n/B), or, packed and with all
    rows active, ceil(n·(K+1)/T)."""
    if isinstance(layout, Packed):
        return -(-requests * layout.rows // layout.tile)
    return -(-requests // layout.requests)


def price(layout: AnyLayout, drafts: Tokens, costs: CostTable, work: Workload = DEFAULT_WORKLOAD) -> float:
    """Return what a step costs in microseconds: a lone request's step plus a request's share of a full one.

    Chunk c starts at column s_c and runs with probability a^s_c (all drafts before it were accepted):
    ``fixed + Σ_c a^s_c · (wave + chunk + wave / B)``. Packed, the one chunk always runs, whole:
    ``fixed + ceil((K+1)/T) · wave + chunk + wave · (K+1)/T``.
    """
    wave = sum(costs.micros(stage, layout.tile) for stage in work.wave_stages)
    chunk = costs.micros(DISPATCH, layout.tile)
    if work.hops:
        chunk += work.hops * costs.micros(HOP, layout.tile)
    chunk += sum(costs.micros(stage, layout.tile) for stage in work.chunk_stages)
    if isinstance(layout, Packed):
        return work.fixed + waves(Requests(1), layout) * wave + chunk + wave * layout.rows / layout.tile
    runs = sum(costs.acceptance**c.start for c in cut(drafts, Width(layout.rows)))
    return work.fixed + runs * (wave + chunk + wave / layout.requests)


def choose(
    tile: Tokens,
    drafts: Tokens,
    requests: Requests,
    costs: CostTable,
    work: Workload = DEFAULT_WORKLOAD,
    kinds: Kinds = "bxs",
    packing: Packing = Packing(),
) -> LayoutChoice:
    """Return the cheapest layout of ``tile`` rows for K = ``drafts`` that breaks no rule, with its rivals.

    Equal prices: a layout B×S wins over the packed one, and fewer rows over more. Raises PlanError for K < 0, no slots,
    or if no layout of the ``kinds`` that compete keeps all rules.
    """
    if drafts < 0:
        raise PlanError(f"K={drafts}: the number of speculative tokens must be 0 or more")
    if requests < 1:
        raise PlanError(f"{requests} slots: want max_num_seqs of at least 1")
    rejected: list[Rejected] = []
    priced: list[tuple[float, AnyLayout]] = []
    for layout in _candidates(tile, drafts, kinds):
        broken = [Rejected(layout, rule, why) for rule, why in _broken(layout, packing)]
        cost = price(layout, drafts, costs, work)
        if not broken and kinds == "packed" and not isinstance(layout, Packed):
            broken = [Rejected(layout, "KindAsked", f"packed was asked for (layouts=packed); this costs {cost:.0f} us")]
        rejected += broken[:1]
        if not broken:
            priced.append((cost, layout))
    if not priced:
        why = "; ".join(f"{r.layout} breaks {r.rule}: {r.reason}" for r in rejected if r.rule != "KindAsked")
        wanted = "; use layouts=bxs or layouts=any" if kinds == "packed" else ""
        raise PlanError(f"no layout of a tile of {tile} rows can be used: {why}{wanted}", rule=rejected[-1].rule)
    # Rounded, because prices that are equal on paper may differ in their last bit.
    priced.sort(key=lambda one: (round(one[0], 6), isinstance(one[1], Packed), one[1].rows))
    best_cost, best = priced[0]
    return LayoutChoice(
        chosen=best,
        chunks=cut(drafts, Width(best.rows)),
        waves_max=waves(requests, best),
        cost=best_cost,
        rejected=tuple(rejected),
        rivals=tuple(Rival(layout, cost, _why_not(layout, best, drafts)) for cost, layout in priced[1:]),
    )


def _candidates(tile: Tokens, drafts: Tokens, kinds: Kinds) -> Iterator[AnyLayout]:
    yield from enumerate_layouts(tile)
    if kinds != "bxs":
        yield Packed(tile, drafts + 1)


def _broken(layout: AnyLayout, packing: Packing) -> Iterator[tuple[str, str]]:
    """Yield (rule, why) for each rule that the layout breaks."""
    if isinstance(layout, Packed):
        yield from ((rule.name, why) for rule in PACKED_RULES if (why := rule.broken(packing)))
    else:
        yield from ((rule.name, why) for rule in RULES if (why := rule.broken(layout)))


def _why_not(layout: AnyLayout, best: AnyLayout, drafts: Tokens) -> str:
    """Return what the loser does worse, in the terms of the price."""
    mine, theirs = cut(drafts, Width(layout.rows)), cut(drafts, Width(best.rows))
    if isinstance(layout, Packed):
        alone = waves(Requests(1), layout)
        if alone > 1:
            return f"{alone} waves for every request, whatever is rejected"
        if best.rows == layout.rows:
            return f"K+1 = {layout.rows} divides the tile, so that nothing is gained"
        return f"a request takes {layout.rows} of the tile's rows, whatever is rejected"
    if len(mine) > len(theirs):
        return f"{len(mine)} chunks in sequence, not {len(theirs)}"
    if isinstance(best, Packed):
        return f"a request takes {layout.rows} of the tile's rows, not {best.rows}"
    return f"a wave serves {layout.requests} of the requests, not {best.requests}"
