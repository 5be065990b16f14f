"""Slots: stable indices into every cache and state table. Knows: who is in a slot, and its generation."""

from __future__ import annotations

from dataclasses import dataclass

from draftline.graph.errors import CapacityError


@dataclass(frozen=True)
class Slot:
    """A lease: ``index`` names the rows of the tables, ``generation`` tells this tenant from earlier ones."""

    index: int
    generation: int


class SlotTable:
    """N slots; the lowest free one is leased first. A lease that was given back is no longer accepted."""

    def __init__(self, slots: int) -> None:
        self._generation = [0] * slots
        self._taken = [False] * slots

    @property
    def num_free(self) -> int:
        return self._taken.count(False)

    def lease(self) -> Slot:
        """Raises CapacityError if every slot is taken."""
        for index, taken in enumerate(self._taken):
            if not taken:
                self._taken[index] = True
                self._generation[index] += 1
                return Slot(index, self._generation[index])
        raise CapacityError(f"all {len(self._taken)} slots are taken; raise --max-num-seqs or wait")

    def holds(self, slot: Slot) -> bool:
        """Whether the lease is still good."""
        return self._taken[slot.index] and self._generation[slot.index] == slot.generation

    def release(self, slot: Slot) -> None:
        """Give the lease back. Raises CapacityError if it is not good any more."""
        if not self.holds(slot):
            raise CapacityError(
                f"slot {slot.index}: lease of generation {slot.generation} was given back before;"
                f" the slot is at generation {self._generation[slot.index]}"
            )
        self._taken[slot.index] = False
