"""The layout choice: the golden table, the price by hand, the rules."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftline.compiler.costs import DEFAULT_COSTS, CostTable
from draftline.compiler.layouts import RULES, Workload, choose, cut, enumerate_layouts, price, waves
from draftline.compiler.plan import CostEntry
from draftline.graph.errors import PlanError
from draftline.stages.core import Layout


def table(tile: int, k: int) -> str:
    """The table of ``docs/layouts.md``: one column each for K = 0, K = 1, K = 2 and 3, and K of 4 or more."""
    column = 0 if k == 0 else 1 if k == 1 else 2 if k <= 3 else 3
    rows = {8: ("B8xS1", "B4xS2", "B2xS4", "B1xS8"), 16: ("B16xS1", "B8xS2", "B4xS4", "B2xS8")}
    return rows[tile][column]


@pytest.mark.parametrize("slots", [1, 8, 64])
@pytest.mark.parametrize("tile", [8, 16])
@pytest.mark.parametrize("k", range(41))
def test_golden_table(tile, k, slots):
    assert str(choose(tile, k, slots, DEFAULT_COSTS).chosen) == table(tile, k)


def test_price_decides_not_a_table():
    """If no draft is ever accepted, later chunks never run and are free: S=1 wins at every K."""
    never = CostTable((CostEntry("*", 0, 0.0, "assumed"), CostEntry("verify", 0, 1.0, "assumed")), 0.0)
    assert {choose(8, k, 8, never).chosen.rows for k in range(41)} == {1}


def test_price_by_hand():
    """T=8, K=9, S=8: chunk 0 always, chunk 1 with probability 1/2^8; S=4: with 1, 1/2^4, 1/2^8."""
    costs = CostTable(
        (
            CostEntry("verify", 8, 100.0, "measured"),
            CostEntry("accept.greedy", 0, 3.0, "assumed"),
            CostEntry("dispatch", 0, 7.0, "assumed"),
        ),
        0.5,
    )
    assert price(Layout(1, 8), 9, costs) == pytest.approx((1 + 1 / 256) * (100 + 3 + 7 + 100))
    assert price(Layout(2, 4), 9, costs) == pytest.approx((1 + 1 / 16 + 1 / 256) * (100 + 3 + 7 + 50))
    assert price(Layout(2, 4), 9, costs, Workload(fixed=11.0)) == pytest.approx(price(Layout(2, 4), 9, costs) + 11)


@given(st.integers(0, 60), st.integers(1, 8))
def test_chunks_cut_the_window(k, rows):
    chunks = cut(k, rows)
    assert len(chunks) == math.ceil((k + 1) / rows)
    columns = [c.start + i for c in chunks for i in range(c.width)]
    assert columns == list(range(k + 1))


def test_hops_are_paid_per_chunk():
    """Two messages of 25 us in each of two chunks, the second of which runs with probability 0.85^8."""
    hop = price(Layout(1, 8), 9, DEFAULT_COSTS, Workload(hops=2)) - price(Layout(1, 8), 9, DEFAULT_COSTS)
    assert hop == pytest.approx(50 * (1 + 0.85**8))


def test_worked_example():
    """K=9 at S=8 runs active widths 8 then 2."""
    assert [(c.start, c.width) for c in choose(8, 9, 8, DEFAULT_COSTS).chunks] == [(0, 8), (8, 2)]


def test_every_layout_is_chosen_priced_or_rejected():
    choice = choose(16, 3, 8, DEFAULT_COSTS)
    names = [
        str(choice.chosen),
        *(str(r.layout) for r in choice.rivals),
        *(str(r.layout) for r in choice.rejected),
    ]
    assert sorted(names) == sorted(str(layout) for layout in enumerate_layouts(16))
    assert all(rival.cost >= choice.cost and rival.reason for rival in choice.rivals)
    assert [(str(r.layout), r.rule) for r in choice.rejected] == [("B1xS16", "RowsCapped")]


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [("RowsCapped", Layout(1, 16), Layout(2, 8)), ("RowsPowerOfTwo", Layout(4, 3), Layout(3, 4))],
)
def test_each_layout_rule_fires(rule, bad, good):
    broken = {r.name: r.broken for r in RULES}[rule]
    assert str(bad.rows) in broken(bad)
    assert broken(good) == ""


def test_all_layout_rules_are_tested():
    assert {rule.name for rule in RULES} == {"RowsCapped", "RowsPowerOfTwo"}


@given(st.integers(0, 200), st.sampled_from([Layout(8, 1), Layout(4, 2), Layout(1, 8)]))
def test_waves(n, layout):
    count = waves(n, layout)
    assert count * layout.requests >= n > (count - 1) * layout.requests or n == count == 0


@pytest.mark.parametrize(
    ("tile", "k", "slots", "said"), [(8, -1, 8, "K=-1"), (0, 3, 8, "tile of 0 rows"), (8, 3, 0, "0 slots")]
)
def test_nonsense_is_refused(tile, k, slots, said):
    with pytest.raises(PlanError, match=said):
        choose(tile, k, slots, DEFAULT_COSTS)


def test_cost_lookup_prefers_the_specific():
    costs = CostTable(
        (
            CostEntry("*", 0, 1.0, "assumed"),
            CostEntry("verify", 0, 2.0, "assumed"),
            CostEntry("verify", 8, 3.0, "measured"),
        ),
        0.5,
    )
    assert [costs.micros("verify", 8), costs.micros("verify", 16), costs.micros("pad", 8)] == [3.0, 2.0, 1.0]
    with pytest.raises(PlanError, match=r"no entry for stage 'verfy'.*did you mean 'verify'"):
        CostTable(costs.entries[1:], 0.5).micros("verfy", 8)


@pytest.mark.parametrize("acceptance", [-0.1, 1.1])
def test_acceptance_is_a_probability(acceptance):
    with pytest.raises(PlanError, match="between 0 and 1"):
        CostTable((), acceptance)


def test_infinite_cost_is_refused():
    with pytest.raises(PlanError, match="finite"):
        CostTable((CostEntry("*", 0, float("inf"), "measured"),), 0.5)


def test_default_costs_are_marked_assumed():
    assert {entry.source for entry in DEFAULT_COSTS.entries} == {"assumed"}
