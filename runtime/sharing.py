"""One fill call's part in prefix caching: rings to restore and to keep, pages to publish.

Knows: the call's inputs and rows. Does not know: how a call runs. See ``prefix.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from .metadata import Arrays
from .pages import Key
from .prefix import PrefixCache
from .request import Live


class Sharing:
    """Made before the call, which it tells what to restore and to keep; ``over`` after it."""

    def __init__(self, prefix: PrefixCache | None, inputs: Arrays, rows: Sequence[tuple[Live, int]]) -> None:
        """``rows`` (request, position) of prompts, those of each request in order."""
        self._prefix, self._places = prefix, list[tuple[Key, int]]()
        ends = {live.index: (live, position + 1) for live, position in rows} if prefix is not None else {}
        self._lives = [live for live, _ in ends.values()]
        if prefix is None or "restore" not in inputs:
            return
        for live, end in ends.values():
            inputs["restore"][live.slot.index] = live.restore
            place = prefix.place(live, live.filled, end)
            if place is not None:
                self._places.append(place)
                inputs["keep"][live.slot.index] = place[1]

    def over(self, done: bool) -> None:
        """The call is over; not ``done``: it failed."""
        if self._prefix is None:
            return
        for place in self._places:
            self._prefix.kept(place, done)
        for live in self._lives if done else ():
            self._prefix.restored(live)
            self._prefix.written(live)
