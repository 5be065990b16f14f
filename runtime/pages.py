"""Cache pages of the whole deployment. Knows: which pages are free, who holds which, whose prefix lies in them. Does
not know: contents, when a page has been written.

A request's pages cover positions [0, pages · page_size). The window's pages are reserved before a step is
dispatched, so no row ever lacks one. A page that is published may be shared: whoever holds it only reads it, or writes
what is there already. When nobody holds it any more it waits to be found again, until another page is needed and all
that hold nothing are taken; the one that has waited longest goes first.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Sequence

from draftline.graph.errors import CapacityError

Key = bytes
"""Names a page's contents and all before it; see ``prefix.py``."""


class PagePool:
    """Free list, block tables and published pages. Lowest free page first, so that runs are reproducible."""

    def __init__(self, num_pages: int, page_size: int, slots: int) -> None:
        self.page_size, self.num_pages = page_size, num_pages
        self._blank = list(range(num_pages))  # a heap: free, and nobody will look for what is in them
        self._waiting: OrderedDict[int, Key] = OrderedDict()  # free, but published
        self._holders: Counter[int] = Counter()
        self._key: dict[int, Key] = {}
        self._page: dict[Key, int] = {}
        self._held: list[list[int]] = [[] for _ in range(slots)]

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._waiting)

    def held(self, slot: int) -> tuple[int, ...]:
        """The slot's pages, in order of position."""
        return tuple(self._held[slot])

    def missing(self, slot: int, positions: int) -> int:
        """Pages that the slot lacks for positions 0 … positions-1."""
        return max(0, -(-positions // self.page_size) - len(self._held[slot]))

    def reserve(self, slot: int, positions: int) -> tuple[int, ...]:
        """Give the slot pages for positions 0 … positions-1 and return all it holds.

        Raises CapacityError, having taken nothing, if the pool has too few.
        """
        missing = self.missing(slot, positions)
        if missing > self.num_free:
            raise CapacityError(
                f"slot {slot} wants {missing} more cache pages of {self.page_size} positions, {self.num_free} are free"
            )
        for _ in range(missing):
            page = self._take()
            self._holders[page] = 1
            self._held[slot].append(page)
        return tuple(self._held[slot])

    def _take(self) -> int:
        if self._blank:
            return heapq.heappop(self._blank)
        page, key = self._waiting.popitem(last=False)
        del self._page[key], self._key[page]
        return page

    def release(self, slot: int) -> None:
        """Take all pages of the slot back. Of what was published, the pages of later positions are the first to go:
        nothing could be found behind a gap."""
        for page in reversed(self._held[slot]):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if page in self._key:
                self._waiting[page] = self._key[page]
            else:
                heapq.heappush(self._blank, page)
        self._held[slot] = []

    def publish(self, slot: int, block: int, key: Key) -> None:
        """The slot's page number ``block`` is written; whoever asks for ``key`` may have it. If another page has the
        same contents already, that one stays the one to be found."""
        page = self._held[slot][block]
        if key not in self._page and page not in self._key:
            self._page[key], self._key[page] = page, key

    def known(self, keys: Sequence[Key]) -> int:
        """How many of the first ``keys`` have a page."""
        return next((i for i, key in enumerate(keys) if key not in self._page), len(keys))

    def num_waiting(self, keys: Sequence[Key]) -> int:
        """How many of these pages are free: whoever takes them leaves that many fewer."""
        return sum(self._page[key] in self._waiting for key in keys)

    def share(self, slot: int, keys: Sequence[Key]) -> None:
        """Give a slot that holds nothing the pages of ``keys``, all of which are known."""
        for key in keys:
            page = self._page[key]
            self._waiting.pop(page, None)
            self._holders[page] += 1
            self._held[slot].append(page)

    def forget(self) -> None:
        """Nothing that was published is true any more: the caches are lost."""
        for page in self._waiting:
            heapq.heappush(self._blank, page)
        self._waiting.clear()
        self._key.clear()
        self._page.clear()
