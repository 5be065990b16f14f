"""The packed layout in the compiler: its price by hand, when it wins, its rules, its waves, its JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from compiler_fakes import MTP, SIGNATURES, ir_after, plan_of
from hypothesis import given
from hypothesis import strategies as st

from draftline.compiler.costs import DEFAULT_COSTS, CostTable
from draftline.compiler.explain import dump_text, emit, explain
from draftline.compiler.layouts import PACKED_RULES, Packing, Workload, choose, price, waves
from draftline.compiler.plan import Chunk, CostEntry, LiveAbove, Plan, RowsAbove
from draftline.compiler.verifier import RULES
from draftline.graph.errors import PlanError
from draftline.stages.core import Layout, Packed

CAN = Packing(slot_per_row=True)
PACKED = {"layouts": "packed", "slot_per_row": True}


def costs(acceptance: float) -> CostTable:
    entries = (("verify", 100.0), ("accept.greedy", 3.0), ("dispatch", 7.0))
    return CostTable(tuple(CostEntry(stage, 0, us, "measured") for stage, us in entries), acceptance)


def names(tile: int, kinds: str, table: CostTable = DEFAULT_COSTS, depths: range = range(17)) -> list[str]:
    return [str(choose(tile, k, 8, table, kinds=kinds, packing=CAN).chosen) for k in depths]


def test_price_by_hand():
    """K=4, T=8: one wave alone, 5/8 of one in a full step. K=9: two alone, 10/8 in a full step. Acceptance is idle."""
    for acceptance in (0.0, 0.5, 1.0):
        assert price(Packed(8, 5), 4, costs(acceptance)) == pytest.approx(100 + 7 + 3 + 62.5)
        assert price(Packed(8, 10), 9, costs(acceptance)) == pytest.approx(200 + 7 + 3 + 125)
    assert price(Packed(8, 5), 4, costs(0.5), Workload(fixed=11.0)) == pytest.approx(172.5 + 11)


def test_it_wins_where_the_window_does_not_divide_the_tile():
    """With the default table; where K+1 divides the tile the prices are equal and B×S stays."""
    assert names(8, "any") == [
        *("B8xS1", "B4xS2", "packed T8", "B2xS4", "packed T8", "packed T8", "packed T8", "B1xS8"),
        *["B1xS8"] * 9,  # two and more waves for every request, of which B1×S8 skips those behind a rejection
    ]
    assert names(16, "any") == [
        *("B16xS1", "B8xS2", "packed T16", "B4xS4", "packed T16", "packed T16", "packed T16", "B2xS8"),
        *["packed T16"] * 6,
        *["B2xS8"] * 3,
    ]
    assert names(8, "any", depths=range(1)) == names(8, "bxs", depths=range(1)) == ["B8xS1"]


def test_acceptance_decides():
    """K=4, T=8. All drafts accepted: packed 172.5, B1×S8 210, B2×S4 2·160. None: S=1 pays for one row only, 122.5."""
    assert names(8, "any", costs(1.0), range(4, 5)) == ["packed T8"]
    assert names(8, "any", costs(0.0), range(4, 5)) == ["B8xS1"]
    # Two waves for all, none of which a rejection could have saved: 335 against 2·210.
    assert names(8, "any", costs(1.0), range(9, 10)) == ["packed T8"]


def test_a_price_that_is_equal_on_paper_is_equal():
    """A third of a wave, once as 1/3 and once as 4/12, must not differ in the last bit and let packed win."""
    for us in (993.7, 1013.3, 0.1):
        table = CostTable((CostEntry("*", 0, us, "measured"),), 0.5)
        assert str(choose(12, 3, 8, table, kinds="any", packing=CAN).chosen) == "B3xS4"


def test_rivals_have_reasons():
    def reasons(k: int, kinds: str) -> dict[str, str]:
        choice = choose(8, k, 8, DEFAULT_COSTS, kinds=kinds, packing=CAN)
        return {str(r.layout): r.reason for r in (*choice.rivals, *choice.rejected)}

    assert reasons(4, "any")["B1xS8"] == "a request takes 8 of the tile's rows, not 5"
    assert reasons(4, "any")["B2xS4"] == "2 chunks in sequence, not 1"
    assert reasons(9, "any")["packed T8"] == "2 waves for every request, whatever is rejected"
    assert reasons(3, "any")["packed T8"] == "K+1 = 4 divides the tile, so that nothing is gained"
    assert "packed T8" not in reasons(4, "bxs")
    assert reasons(0, "packed")["B8xS1"] == "packed was asked for (layouts=packed); this costs 1195 us"


@pytest.mark.parametrize(
    ("rule", "packing"),
    [
        ("RowsNeedSlots", Packing()),
        ("StagesNeedRows", Packing(True, whole=("mine",))),
        ("OverlapNeedsChunks", Packing(True, overlap=True)),
    ],
)
def test_each_rule_keeps_it_out(rule, packing):
    with pytest.raises(PlanError, match=rf"packed T8 breaks {rule}: .*use layouts=bxs or layouts=any") as caught:
        choose(8, 4, 8, DEFAULT_COSTS, kinds="packed", packing=packing)
    assert caught.value.rule == rule
    choice = choose(8, 4, 8, DEFAULT_COSTS, kinds="any", packing=packing)
    assert str(choice.chosen) == "B1xS8"
    assert [(str(r.layout), r.rule) for r in choice.rejected] == [("packed T8", rule)]


def test_all_packed_rules_are_tested():
    assert [rule.name for rule in PACKED_RULES] == ["RowsNeedSlots", "StagesNeedRows", "OverlapNeedsChunks"]
    assert not any(rule.broken(CAN) for rule in PACKED_RULES)


def test_a_model_without_slots_per_row_is_refused_by_the_compiler():
    with pytest.raises(PlanError, match="RowsNeedSlots"):
        plan_of(4, layouts="packed")
    assert str(plan_of(4, layouts="any").layout.chosen) == "B1xS8"


def test_a_stage_that_serves_whole_requests_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(SIGNATURES, "verify", replace(SIGNATURES["verify"], packs=""))
    with pytest.raises(PlanError, match="StagesNeedRows: verify serves whole requests only"):
        plan_of(4, **PACKED)


def test_overlap_keeps_its_chunks_where_kinds_compete():
    (rejected,) = plan_of(4, layouts="any", slot_per_row=True, overlap=True).layout.rejected
    assert rejected.rule == "OverlapNeedsChunks"
    assert str(plan_of(4, overlap=True, **PACKED).layout.chosen) == "packed T8"


@given(st.integers(0, 30), st.integers(0, 20), st.integers(1, 17))
def test_waves_of_full_windows(requests, k, tile):
    count, rows = waves(requests, Packed(tile, k + 1)), requests * (k + 1)
    assert count * tile >= rows > (count - 1) * tile or rows == count == 0


@pytest.mark.parametrize(("k", "tile", "slots"), [(2, 8, 5), (0, 8, 9), (4, 7, 9), (20, 16, 3), (9, 8, 2)])
def test_waves_run_while_rows_are_left(k, tile, slots):
    """Simulated for every number of active rows: waves 0 … ceil(rows/T) − 1 run, and no other."""
    plan = plan_of(k, tile=tile, max_num_seqs=slots, **PACKED)
    assert (plan.layout.chunks, dict(plan.dims)["W"]) == ((Chunk(0, 0, k + 1),), k + 1)
    runs = [i for i in plan.workers[0].instructions if i.segment == "s1.verify"]
    assert {i.when.buffer for i in runs} == {"pad.positions"}
    for rows in range(slots * (k + 1) + 1):
        assert [i.wave for i in runs if rows > i.when.n] == list(range(-(-rows // tile)))


@pytest.mark.parametrize("kinds", ["packed", "any"])
@pytest.mark.parametrize("k", [0, 2, 4, 9])
def test_json_round_trip(k, kinds):
    plan = plan_of(k, layouts=kinds, slot_per_row=True)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert [type(i.when) for w in again.workers for i in w.instructions] == [
        type(i.when) for w in plan.workers for i in w.instructions
    ]
    everyone = [again.layout.chosen, *(r.layout for r in (*again.layout.rivals, *again.layout.rejected))]
    assert sum(isinstance(layout, Packed) for layout in everyone) == 1


def test_kinds_are_in_the_key():
    keys = {plan_of(4, **changes).key for changes in ({}, {"layouts": "any"}, {"slot_per_row": True}, PACKED)}
    assert len(keys) == 4


def test_people_and_tools_see_it():
    plan = plan_of(4, layouts="any", slot_per_row=True)
    text = explain(plan)
    assert "layout packed T8  T=8  chunks 1  waves per chunk at most 5  cost" in text
    assert "RUN   s1.verify wave 2 if rows(pad.positions) > 16" in text
    assert "rejected B1xS8  cost" in text
    assert json.loads(emit(plan, "json"))["layout"]["chosen"] == {"tile": 8, "rows": 5}
    assert "s1.verify on cpu:0, per wave" in emit(plan, "mermaid")
    assert "s1.verify on cpu:0, per wave" in emit(plan, "dot")
    assert "layout packed T8, 1 chunks, 5 waves" in dump_text("layout", ir_after("layout", 4, MTP, **PACKED))


def _edit_layout(ir, **changes):
    return replace(ir, layout=replace(ir.chosen(), **changes))


def _edit_waves(ir, when):
    worker = ir.workers[0]
    code = tuple(replace(i, when=when(i)) if i.segment == "s1.verify" else i for i in worker.instructions)
    return replace(ir, workers=(replace(worker, instructions=code),))


@pytest.mark.parametrize(
    ("rule", "damage"),
    [
        ("TileDivides", lambda ir: _edit_layout(ir, chosen=Packed(16, 5))),
        ("WavesCover", lambda ir: _edit_layout(ir, waves_max=4)),
        ("ChunksCover", lambda ir: _edit_layout(ir, chosen=Packed(8, 3), chunks=(Chunk(0, 0, 3), Chunk(1, 3, 2)))),
        ("ConditionsCount", lambda ir: _edit_waves(ir, lambda i: RowsAbove("pad.live", i.when.n))),
        ("ConditionsCount", lambda ir: _edit_waves(ir, lambda i: RowsAbove("pad.accepted", i.when.n))),
        ("ConditionsCount", lambda ir: _edit_waves(ir, lambda i: RowsAbove("pad.positions", -1))),
        ("WavesConditioned", lambda ir: _edit_waves(ir, lambda i: RowsAbove("pad.window", i.when.n))),
        ("WavesConditioned", lambda ir: _edit_waves(ir, lambda i: RowsAbove("pad.positions", i.when.n + 1))),
        ("WavesConditioned", lambda ir: _edit_waves(ir, lambda i: LiveAbove("pad.live", i.when.n))),
        ("WavesConditioned", lambda ir: _edit_layout(ir, chosen=Layout(1, 8))),
    ],
)
def test_the_verifier_knows_packed(rule, damage):
    good = ir_after("schedule", 4, MTP, **PACKED)
    (check,) = [one.check for one in RULES if one.name == rule]
    assert list(check(good)) == []
    assert list(check(damage(good)))
