"""Who runs: the queue, slots, cache pages, and who has to wait for them.

Knows: admission, reservation, preemption, shared prefixes. Does not know: plans, what a step computes.

Requests are served in the order in which they came. One is admitted when a slot is free and so many pages that its
journal and its next window fit and everybody who runs has one page to grow. Where pages run out nevertheless, the
latest arrival gives all of its own back and waits at the head of the queue; it is filled again from its journal, prompt
and committed tokens, when it has its next turn.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from draftline.graph.errors import CapacityError

from .deployment import Sizes
from .pages import PagePool
from .prefix import Hit, PrefixCache
from .request import NOWHERE, Live
from .slots import SlotTable


class Scheduler:
    """The requests of one engine. ``live``: by slot, those that run. ``table``: the block table [N, G] int64, -1 where
    there is no page. Raises CapacityError for pages that do not hold one request."""

    def __init__(self, sizes: Sizes, max_waiting: int, shares: bool) -> None:
        """``shares``: prefixes are shared."""
        self.sizes, self.max_waiting = sizes, max_waiting
        geometry = sizes.geometry()
        if geometry.num_pages < sizes.pages_per_slot:
            raise CapacityError(
                f"{geometry.num_pages} cache pages of {sizes.page_size} positions do not hold one request of"
                f" max_model_len={sizes.max_model_len}; {sizes.pages_per_slot} or more are needed"
            )
        self.slots = SlotTable(sizes.max_num_seqs)
        self.pages = PagePool(geometry.num_pages, sizes.page_size, sizes.max_num_seqs)
        self.table = np.full((sizes.max_num_seqs, sizes.pages_per_slot), -1, dtype=np.int64)
        self.waiting: deque[Live] = deque()
        self.live: dict[int, Live] = {}
        self.preemptions = 0
        self.prefix = PrefixCache(self.pages, geometry.slots, geometry.snapshots) if shares else None
        self._arrivals = itertools.count()

    @property
    def num_free(self) -> int:
        """Requests that ``enqueue`` would take now."""
        return self.slots.num_free + self.max_waiting - len(self.waiting)

    @property
    def by_arrival(self) -> list[Live]:
        """Who runs, in the order in which they came."""
        return sorted(self.live.values(), key=_arrival)

    def enqueue(self, live: Live) -> None:
        """Let a request wait for its turn."""
        live.arrival = next(self._arrivals)
        if self.prefix is not None:
            live.keys = self.prefix.keys(live)
        self.waiting.append(live)

    def withdraw(self) -> list[Live]:
        """Take everybody out; they hold nothing any more."""
        running = self.by_arrival
        for live in running:
            self.release(live)
        lives = [*running, *self.waiting]
        self.waiting.clear()
        return lives

    def admits(self, k_max: int) -> bool:
        """Whether ``admit`` would let somebody in."""
        if not self.waiting or not self.slots.num_free:
            return False
        live = self.waiting[0]
        return self._fits(live, self.prefix.find(live.keys) if self.prefix is not None else Hit(), k_max)

    def admit(self, k_max: int) -> Iterator[Live]:
        """Give slots and pages to those who wait, as far as they go; ``k_max``: drafts of a window."""
        while self.waiting and self.slots.num_free:
            live = self.waiting[0]
            hit = self.prefix.find(live.keys) if self.prefix is not None else Hit()
            if not self._fits(live, hit, k_max):
                return
            self.waiting.popleft()
            live.slot = self.slots.lease()
            live.seat = live.slot.index
            self.live[live.slot.index] = live
            if self.prefix is not None:
                self.prefix.take(live, hit)
            self._enter(live.slot.index, self.pages.reserve(live.slot.index, len(live.tokens)))
            yield live

    def _fits(self, live: Live, hit: Hit, k_max: int) -> bool:
        positions = min(len(live.tokens) + k_max, self.sizes.max_model_len)
        wanted = -(-positions // self.sizes.page_size) - len(hit.keys)
        free = self.pages.num_free - self.pages.num_waiting(hit.keys)
        return wanted + len(self.live) <= free or (not self.live and wanted <= free)

    def reserve(self, batch: Sequence[Live], positions: Callable[[Live], int]) -> list[Live]:
        """Pages for ``positions(live)`` of each, the earliest arrivals first; those of ``batch`` that have them. The
        others, and maybe some that are not in it, were preempted."""
        for live in sorted(batch, key=_arrival):
            wanted = min(positions(live), self.sizes.max_model_len)
            while live.slot is not NOWHERE and self.pages.missing(live.slot.index, wanted) > self.pages.num_free:
                self._preempt(self.by_arrival[-1])
            if live.slot is not NOWHERE:
                self._enter(live.slot.index, self.pages.reserve(live.slot.index, wanted))
        return [live for live in batch if live.slot is not NOWHERE]

    def _enter(self, slot: int, pages: Sequence[int]) -> None:
        self.table[slot, : len(pages)] = pages

    def _preempt(self, live: Live) -> None:
        self.release(live)
        self.preemptions += 1
        live.preemptions += 1
        self.waiting.appendleft(live)

    def release(self, live: Live) -> None:
        """Take slot and pages of a request back, if it has any."""
        if live.slot is NOWHERE or not self.slots.holds(live.slot):
            return
        if self.prefix is not None:
            self.prefix.restored(live)
        del self.live[live.slot.index]
        self.pages.release(live.slot.index)
        self.table[live.slot.index] = -1
        self.slots.release(live.slot)
        live.slot, live.published = NOWHERE, 0
        live.lose()

    def lost(self) -> None:
        """The caches are lost: nothing that was computed can be found in them."""
        if self.prefix is not None:
            self.prefix.forget()
        for live in self.live.values():
            if self.prefix is not None:
                self.prefix.restored(live)
            live.published = 0


def _arrival(live: Live) -> int:
    return live.arrival
