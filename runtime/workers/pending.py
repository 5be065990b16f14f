"""Calls of a group that are under way: a step, or a start.

Knows: how to wait for a group. Does not know: what is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from draftline.graph.errors import DraftlineError, UsageError, WorkerError, WorkerLostError

from ..running import Outputs


class Group(Protocol):
    """What a call needs of its group."""

    epoch: int

    @property
    def answer(self) -> Outputs | DraftlineError | None: ...

    def pump(self, timeout: float) -> None: ...

    def patience(self) -> float: ...

    def sockets(self) -> list[Any]: ...

    def spawn(self) -> None: ...

    def fail(self, error: WorkerError) -> None: ...


class Call:
    """A step under way."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def ready(self) -> bool:
        if self._group.answer is None:
            self._group.pump(0)
        return self._group.answer is not None

    def wait(self) -> None:
        while self._group.answer is None:
            self._group.pump(self._group.patience())

    def sockets(self) -> Sequence[Any]:
        return self._group.sockets()

    def result(self) -> Outputs:
        answer = self._group.answer
        if answer is None or isinstance(answer, DraftlineError):
            raise answer or WorkerLostError("the step is not over")
        return answer


class Starting:
    """Workers that are being started, at ``when`` (CLOCK_MONOTONIC seconds) or later."""

    def __init__(self, group: Group, when: float) -> None:
        self._group, self._when, self._spawned = group, when, False

    def ready(self) -> bool:
        if not self._spawned:
            if time.monotonic() < self._when:
                return False
            self._spawned = True
            try:
                self._group.spawn()
            except WorkerError as error:
                self._group.fail(error)
            except UsageError as error:
                if self._group.epoch == 1:
                    raise  # nothing has run yet
                self._group.fail(WorkerLostError(f"the workers cannot be started anew: {error}"))
        if self._group.answer is None:
            self._group.pump(0)
        return self._group.answer is not None

    def wait(self) -> None:
        time.sleep(max(0.0, self._when - time.monotonic()))
        while not self.ready():
            self._group.pump(self._group.patience())

    def sockets(self) -> Sequence[Any]:
        return self._group.sockets() if self._spawned else ()

    def result(self) -> Outputs:
        return Call(self._group).result()
