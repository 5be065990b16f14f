"""Slots and pages against a plain model of them: nothing is leased twice, nothing leaks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.graph.errors import CapacityError
from draftline.runtime.pages import PagePool
from draftline.runtime.slots import Slot, SlotTable


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 70)), max_size=40))
def test_pages_are_never_shared_and_never_lost(moves):
    """(slot, positions): reserve that many, or release where positions is 0."""
    pool, held = PagePool(12, page_size=8, slots=4), dict.fromkeys(range(4), ())
    for slot, positions in moves:
        if positions == 0:
            pool.release(slot)
            held[slot] = ()
            continue
        wanted = max(len(held[slot]), -(-positions // 8))
        free = 12 - sum(map(len, held.values()))
        if wanted - len(held[slot]) > free:
            with pytest.raises(CapacityError, match=f"slot {slot} wants .* pages of 8 positions, {free} are free"):
                pool.reserve(slot, positions)
        else:
            got = pool.reserve(slot, positions)
            assert got[: len(held[slot])] == held[slot]  # what it had stays where it is
            held[slot] = got
            assert len(got) == wanted
        taken = [p for pages in held.values() for p in pages]
        assert len(taken) == len(set(taken))
        assert pool.num_free == 12 - len(taken)
        assert all(pool.held(s) == held[s] for s in held)


def test_a_slot_given_back_is_fenced():
    table = SlotTable(2)
    first, second = table.lease(), table.lease()
    assert (first.index, second.index) == (0, 1)
    with pytest.raises(CapacityError, match="all 2 slots are taken"):
        table.lease()
    table.release(first)
    again = table.lease()
    assert again.index == first.index
    assert again.generation == first.generation + 1
    assert table.holds(again)
    assert not table.holds(first)
    with pytest.raises(CapacityError, match="lease of generation 1 was given back before; the slot is at generation 2"):
        table.release(first)
    assert table.holds(again)
    assert not table.holds(Slot(1, 7))
