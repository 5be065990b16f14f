"""Prefix caching: which rows of a prompt's caches somebody has computed before.

Knows: keys of pages, kept rings, what may be shared. Does not know: how caches are read or written.

A page is shared if its tokens and all before them are the same: its key is a hash over the key of the page before and
its own tokens. Only pages of prompt rows are published, and only once the call that wrote them is over: prompt rows are
all computed by calls of P rows, so a hit finds bitwise what a miss would compute, and rows that a verify call computed
(of T rows, another rounding) are never taken for them.

Models that keep rings beside the pages (a sliding window, an MTP layer's cache) need those as they were at the end of
the prefix: after a prompt's call that reached the end of a page, the slot's rings are copied to one of a few snapshots.
A hit ends at a page with a snapshot. What is computed then starts one row before the end of that page, because an MTP
layer's row holds the token after its position, and that one the prefix does not know; the target's row is written again
as it was.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .pages import Key, PagePool
from .request import Live


def keys_of(tokens: Sequence[int], page_size: int) -> tuple[Key, ...]:
    """The keys of all pages that the tokens fill."""
    keys, key = [], b""
    for start in range(0, len(tokens) - page_size + 1, page_size):
        own = np.asarray(tokens[start : start + page_size], dtype=np.int64).tobytes()
        key = hashlib.blake2b(key + own, digest_size=16).digest()
        keys.append(key)
    return tuple(keys)


@dataclass(frozen=True)
class Hit:
    """``keys``: of the pages that are there. ``ring``: the number of the rings to start from, -1 for none."""

    keys: tuple[Key, ...] = ()
    ring: int = -1


@dataclass
class Usage:
    """Counters: prompt rows that were looked up, and those that were found."""

    queries: int = 0
    hits: int = 0


class PrefixCache:
    """Over one engine's pages. ``first_ring``: the number of the first of ``snapshots`` snapshots; none where the model
    has no rings."""

    def __init__(self, pages: PagePool, first_ring: int, snapshots: int) -> None:
        self._pages, self._needs_rings = pages, snapshots > 0
        self._free = list(range(first_ring, first_ring + snapshots))
        self._rings: OrderedDict[Key, int] = OrderedDict()  # longest unused first
        self._pinned: Counter[int] = Counter()  # somebody will start from them
        self.usage = Usage()

    def keys(self, live: Live) -> tuple[Key, ...]:
        """The keys of a request's pages that may be shared: those of prompt rows alone."""
        return keys_of(live.request.prompt[:-1], self._pages.page_size)

    def find(self, keys: Sequence[Key]) -> Hit:
        """The longest prefix that is there."""
        known = self._pages.known(keys)
        if self._needs_rings:
            known = next((n for n in range(known, 0, -1) if keys[n - 1] in self._rings), 0)
        if not known:
            return Hit()
        ring = self._rings.get(keys[known - 1], -1)
        if ring >= 0:
            self._rings.move_to_end(keys[known - 1])
        return Hit(tuple(keys[:known]), ring)

    def take(self, live: Live, hit: Hit) -> None:
        """Let the request start from the prefix: its slot holds nothing yet."""
        self._pages.share(live.slot.index, hit.keys)
        rows = len(hit.keys) * self._pages.page_size - 1 if hit.keys else 0
        live.filled, live.restore, live.shared = rows, hit.ring, rows
        if hit.ring >= 0:
            self._pinned[hit.ring] += 1
        self.usage.queries += len(live.request.prompt) - 1
        self.usage.hits += rows

    def place(self, live: Live, before: int, after: int) -> tuple[Key, int] | None:
        """Where a call that computes prompt rows ``before`` … ``after`` - 1 shall keep the slot's rings: the key of the
        last page that it fills, and a ring's number that nobody counts on from now on. None: nowhere."""
        end = after // self._pages.page_size
        if not self._needs_rings or end <= before // self._pages.page_size or end > len(live.keys):
            return None
        key = live.keys[end - 1]
        if key in self._rings:
            return None
        if not self._free:
            oldest = next((k for k, ring in self._rings.items() if not self._pinned[ring]), None)
            if oldest is None:
                return None
            self._free.append(self._rings.pop(oldest))
        return key, self._free.pop()

    def restored(self, live: Live) -> None:
        """The request has its prefix's rings, or does not need them any more."""
        if live.restore >= 0:
            self._pinned[live.restore] -= 1
        live.restore = -1

    def kept(self, place: tuple[Key, int], done: bool) -> None:
        """The call that was given ``place`` is over; not ``done``: it failed, and wrote who knows what."""
        key, ring = place
        if done and key not in self._rings:
            self._rings[key] = ring
        else:
            self._free.append(ring)

    def written(self, live: Live) -> None:
        """The request's rows below ``filled`` are in the caches."""
        pages = min(live.filled // self._pages.page_size, len(live.keys))
        for block in range(live.published, pages):
            self._pages.publish(live.slot.index, block, live.keys[block])
        live.published = max(live.published, pages)

    def forget(self) -> None:
        """The caches are lost. Requests that were to start from them start anew."""
        self._pages.forget()
        self._free.extend(self._rings.values())
        self._rings.clear()
