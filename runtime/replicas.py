"""Several engines, one list of requests: data parallel.

Knows: which engine has the fewest requests, whose call is over. Does not know: what a call is. A request stays with
the engine that took it, whose caches hold it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import zmq

from .engine import Engine
from .request import Listener, Output, Request, check
from .running import Flow, Pending

LOOK = 0.25
"""Seconds between two looks at all calls, whatever comes: deadlines are looked at then."""


def generate(engines: Sequence[Engine], requests: Sequence[Request], listen: Listener | None = None) -> list[Output]:
    """Run all requests to their ends; outputs in the order of the requests.

    Raises RequestError for a bad one before any is queued.
    """
    if len(engines) == 1:
        return engines[0].generate(requests, listen)
    for i, request in enumerate(requests):
        check(request, engines[0].shape.vocab_size, engines[0].sizes.max_model_len, f"prompt {i + 1}")
    todo = deque(enumerate(requests))
    done: list[Output] = []
    flows: dict[Engine, tuple[Flow[list[Output]], Pending | None]] = {}
    while todo or flows or any(e.num_unfinished for e in engines):
        while todo and (engine := min(engines, key=_load)).num_unfinished < engine.sizes.max_num_seqs:
            engine.add(*todo.popleft())
        for engine in engines:
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
        if flows:
            _wait([p for _, p in flows.values() if p is not None])
    return sorted(done, key=lambda output: output.index)


def _load(engine: Engine) -> int:
    return engine.num_unfinished


def _wait(pending: Sequence[Pending]) -> None:
    """Until something happened to one of the calls."""
    poller = zmq.Poller()
    for one in pending:
        for socket in one.sockets():
            poller.register(socket, zmq.POLLIN)
    poller.poll(LOOK * 1000 if poller.sockets else 20)
