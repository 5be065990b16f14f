"""Which rows fill a request's caches, and in which calls. Knows: the journal. Does not know: how a call runs.

A row's cache entries depend on the number of rows of the call that wrote them (bitwise; DESIGN §4.3). So a cache that
is rebuilt is bitwise the one that was lost only if every row is computed again by a call of the size that it was
first computed by: the prompt, but for its last token, by prefill calls of P rows; the last prompt token and all
committed tokens by calls of T rows, which is what verified them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .request import Live


def fill_calls(todo: Sequence[Live], prefill_tile: int, tile: int) -> Iterator[tuple[bool, list[tuple[Live, int]]]]:
    """Yield (whether it is a replay, (request, position) of each row) for all rows before the tails that are not
    filled. Rows of several
    requests share a call; rows of one request come in order, over all calls."""
    ends = [(live, len(live.request.prompt) - 1) for live in todo]
    prompts = [(live, p) for live, end in ends for p in range(live.filled, end)]
    committed = [(live, p) for live, end in ends for p in range(max(live.filled, end), len(live.tokens) - 1)]
    for replay, rows, size in ((False, prompts, prefill_tile), (True, committed, tile)):
        for start in range(0, len(rows), size):
            yield replay, rows[start : start + size]


def missed_calls(todo: Sequence[Live], size: int) -> Iterator[list[tuple[Live, int]]]:
    """Yield (request, position) of each row before the tails that a drafter has not seen, ``size`` rows a call. They
    are committed rows, so calls of T rows leave the target's entries, which they write again, bitwise as they are."""
    rows = [(live, p) for live in todo for p in range(live.seen, len(live.tokens) - 1)]
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
