"""Cache pages of the whole deployment. Knows: which pages are free and who holds which. Does not know: contents.

A request's pages cover positions [0, pages · page_size). The window's pages are reserved before a step is
dispatched, so no row ever lacks one.
"""

from __future__ import annotations

from draftline.graph.errors import CapacityError


class PagePool:
    """Free list and block tables. Lowest free page first, so that runs are reproducible."""

    def __init__(self, num_pages: int, page_size: int, slots: int) -> None:
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._held: list[list[int]] = [[] for _ in range(slots)]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def held(self, slot: int) -> tuple[int, ...]:
        """The slot's pages, in order of position."""
        return tuple(self._held[slot])

    def reserve(self, slot: int, positions: int) -> tuple[int, ...]:
        """Give the slot pages for positions 0 … positions-1 and return all it holds.

        Raises CapacityError, having taken nothing, if the pool has too few.
        """
        held = self._held[slot]
        missing = -(-positions // self.page_size) - len(held)
        if missing > len(self._free):
            raise CapacityError(
                f"slot {slot} wants {missing} more cache pages of {self.page_size} positions,"
                f" {len(self._free)} are free"
            )
        held.extend(self._free.pop() for _ in range(missing))
        return tuple(held)

    def release(self, slot: int) -> None:
        """Take all pages of the slot back."""
        self._free.extend(reversed(self._held[slot]))
        self._free.sort(reverse=True)
        self._held[slot] = []
