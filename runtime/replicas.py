"""A list of requests over one engine or several: data parallel.

Knows: which engine has the fewest requests, whose call is over, whose workers are down for good. Does not know: what a
call is. A request stays with the engine that took it, whose caches hold it, for as long as that engine has workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import zmq

from draftline.graph.errors import WorkerLostError

from .engine import Engine
from .request import Listener, Live, Output, Request, check
from .running import Flow, Pending

LOOK = 0.25
"""Seconds between two looks at all calls, whatever comes: deadlines are looked at then."""


def generate(engines: Sequence[Engine], requests: Sequence[Request], listen: Listener | None = None) -> list[Output]:
    """Run all requests to their ends; outputs in the order of the requests.

    An engine whose workers are down for good hands its requests, with their journals, to the others. Raises
    RequestError for a bad request before any is queued, WorkerLostError with all ``outputs`` once no engine is left.
    """
    for i, request in enumerate(requests):
        check(request, engines[0].shape.vocab_size, engines[0].sizes.max_model_len, f"prompt {i + 1}")
    try:
        return _run(engines, requests, listen)
    except WorkerLostError:
        raise
    except BaseException:  # interrupted, or the listener raised: nothing of this call may turn up in the next one
        for engine in engines:
            engine.runtime.abandon()
            engine.withdraw()
            engine.drain()
        raise


def _run(engines: Sequence[Engine], requests: Sequence[Request], listen: Listener | None) -> list[Output]:
    todo = deque(enumerate(requests))
    done: list[Output] = []
    alive = list(engines)
    flows: dict[Engine, tuple[Flow[list[Output]], Pending | None]] = {}
    while todo or flows or any(e.num_unfinished for e in alive):
        while todo and (engine := min(alive, key=_load)).num_unfinished < engine.sizes.max_num_seqs:
            engine.add(*todo.popleft())
        for engine in alive:
            if engine not in flows and engine.num_unfinished:
                flows[engine] = (engine.flow(listen), None)
        for engine, (flow, pending) in list(flows.items()):
            if pending is not None and not pending.ready():
                continue
            try:
                flows[engine] = (flow, next(flow))
            except StopIteration as stop:
                done.extend(stop.value)
                del flows[engine]
            except WorkerLostError as error:
                del flows[engine]
                alive.remove(engine)
                if not alive:
                    raise WorkerLostError(str(error), _end(engine, todo, done, str(error))) from error
                for live in engine.withdraw():
                    min(alive, key=_load).adopt(live)
                done.extend(engine.drain())
        if all(engine in flows for engine in alive if engine.num_unfinished):  # else one of them has its next step
            _wait([pending for _, pending in flows.values() if pending is not None])
    return sorted(done, key=_index)


def _end(engine: Engine, todo: Sequence[tuple[int, Request]], done: Sequence[Output], error: str) -> list[Output]:
    """Outputs of all requests, now that no engine is left."""
    unbegun = [Live(index, request, list(request.prompt)) for index, request in todo]
    for live in [*engine.withdraw(), *unbegun]:
        engine.fail(live, error)
    return sorted([*done, *engine.drain()], key=_index)


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
