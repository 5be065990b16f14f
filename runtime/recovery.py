"""What to do after a failure: who runs next, alone or together, and who has failed for good.

Knows: the requests of the call that failed, how often each failed alone. Does not know: workers, plans.

A stage that raises will raise again, so the requests of that call are run one at a time from then on, until it is
known who makes it raise; that one fails, with the error. A worker that dies may have been killed by anybody, so the
same call is tried once more with all; dies a worker again without a step in between, they run one at a time too, and
one that loses its worker ``STRIKES`` times alone, without a step in between, fails. Whoever did not take part in a call
finds the drafter's state overwritten, and is filled again before its next.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftline.graph.errors import StageError, WorkerError

from .request import Live

STRIKES = 3


class Recovery:
    """The failures of one engine."""

    def __init__(self) -> None:
        self._suspects: list[Live] = []
        self._deaths = 0

    def batch(self, live: Sequence[Live]) -> list[Live]:
        """Who takes part in the next step: all, or one suspect alone."""
        self._suspects = [suspect for suspect in self._suspects if any(suspect is one for one in live)]
        return self._suspects[:1] or list(live)

    def succeeded(self, batch: Sequence[Live], live: Sequence[Live]) -> None:
        """A step of ``batch`` is done."""
        self._deaths = 0
        for one in batch:
            one.strikes = 0
        for one in live:
            if not any(one is other for other in batch):
                one.lose()
        if self._suspects:
            self._suspects.pop(0)

    def failed(self, error: StageError | WorkerError, batch: Sequence[Live], live: Sequence[Live]) -> list[Live]:
        """A call of ``batch`` failed, and workers that died run again. Returns who has failed for good."""
        for one in live:
            one.lose()
        dead = isinstance(error, WorkerError)
        self._deaths += dead
        if len(batch) == 1:
            batch[0].strikes += 1
            if not dead or batch[0].strikes >= STRIKES:
                self._suspects = self._suspects[1:]
                self._deaths = 0
                return list(batch)
        elif not dead or self._deaths > 1:
            self._suspects = list(batch)
        return []
