"""Requests over one engine or several: data parallel.

Knows: which engine has the fewest requests, whose call is over, whose workers are down for good. Does not know: what a
call is. A request stays with the engine that took it, whose caches hold it, for as long as that engine has workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import zmq

from draftline.graph.errors import WorkerLostError

from .engine import Engine
from .request import Listener, Live, Output, Request
from .running import Flow, Pending

LOOK = 0.25
"""Seconds between two looks at all calls, whatever comes: deadlines are looked at then."""


class Crew:
    """Engines that take turns. ``turn`` until nothing is unfinished, and ``wait`` between turns."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines, self.alive = tuple(engines), list(engines)
        self._flows: dict[Engine, tuple[Flow[list[Output]], Pending | None]] = {}
        self._done: list[Output] = []

    @property
    def num_unfinished(self) -> int:
        return sum(engine.num_unfinished for engine in self.alive)

    @property
    def idlest(self) -> Engine:
        """The engine with the fewest requests."""
        return min(self.alive, key=_load)

    def cancel(self, index: int) -> None:
        """See ``Engine.cancel``."""
        for engine in self.alive:
            engine.cancel(index)

    def turn(self, listen: Listener | None = None) -> list[Output]:
        """Take every engine as far as it comes without waiting; the requests that ended. An engine whose workers are
        down for good hands its requests, with their journals, to the others. Raises WorkerLostError once no engine is
        left, whose ``outputs`` are all that ended and all that were unfinished."""
        for engine in self.alive:
            if engine not in self._flows and engine.num_unfinished:
                self._flows[engine] = (engine.flow(listen), None)
        for engine, (flow, pending) in list(self._flows.items()):
            if pending is not None and not pending.ready():
                continue
            try:
                self._flows[engine] = (flow, next(flow))
            except StopIteration as stop:
                self._done.extend(stop.value)
                del self._flows[engine]
            except WorkerLostError as error:
                self._lost(engine, error)
        for engine in self.alive:
            self._done.extend(engine.drain())  # cancelled before they began
        done, self._done = self._done, []
        return done

    def _lost(self, engine: Engine, error: WorkerLostError) -> None:
        del self._flows[engine]
        self.alive.remove(engine)
        unfinished = engine.withdraw()
        self._done.extend(engine.drain())
        if not self.alive:
            raise WorkerLostError(str(error), [*self._done, *ended(engine, unfinished, str(error))]) from error
        for live in unfinished:
            self.idlest.adopt(live)

    def wait(self) -> None:
        """Until something happened to one of the calls; not at all if an engine has its next step to begin."""
        if all(engine in self._flows for engine in self.alive if engine.num_unfinished):
            _wait([pending for _, pending in self._flows.values() if pending is not None])

    def abandon(self) -> None:
        """Forget all requests and calls under way."""
        self._flows.clear()
        for engine in self._engines:
            engine.runtime.abandon()
            engine.withdraw()
            engine.drain()


def generate(engines: Sequence[Engine], requests: Sequence[Request], listen: Listener | None = None) -> list[Output]:
    """Run all requests to their ends; outputs in the order of the requests.

    Raises RequestError for a bad request before any is queued, WorkerLostError with all ``outputs`` once no engine is
    left.
    """
    for i, request in enumerate(requests):
        engines[0].check(request, f"prompt {i + 1}")
    todo, done, crew = deque(enumerate(requests)), [], Crew(engines)
    try:
        while todo or crew.num_unfinished:
            while todo and (engine := crew.idlest).num_unfinished < engine.sizes.max_num_seqs:
                engine.add(*todo.popleft())
            done.extend(crew.turn(listen))
            crew.wait()
    except WorkerLostError as error:
        unbegun = [Live(index, request, list(request.prompt)) for index, request in todo]
        outputs = [*done, *error.outputs, *ended(engines[0], unbegun, str(error))]
        raise WorkerLostError(str(error), sorted(outputs, key=_index)) from error
    except BaseException:  # interrupted, or the listener raised: nothing of this call may turn up in the next one
        crew.abandon()
        raise
    return sorted(done, key=_index)


def ended(engine: Engine, unfinished: Sequence[Live], error: str) -> list[Output]:
    """Outputs of requests that nobody will go on with."""
    for live in unfinished:
        engine.fail(live, error)
    return engine.drain()


def _index(output: Output) -> int:
    return output.index


def _load(engine: Engine) -> int:
    return engine.num_unfinished


def _wait(pending: Sequence[Pending]) -> None:
    """Until something happened to one of the calls."""
    if len(pending) == 1:
        pending[0].wait()
        return
    poller = zmq.Poller()
    for one in pending:
        for socket in one.sockets():
            poller.register(socket, zmq.POLLIN)
    if pending:
        poller.poll(round(LOOK * 1000) if poller.sockets else 20)
