"""Engines for asyncio: requests come and go on an event loop, the engines' loop runs in a thread of its own choice.

Knows: two threads and what passes between them. Does not know: HTTP, text.

Workers end with the thread that started them (``workers/guard.py``), so ``run`` belongs in the main thread and the
event loop in another: the server is the guest here, not the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from draftline.graph.errors import CapacityError, DraftlineError, WorkerLostError

from .pipeline import Pipeline
from .replicas import Crew
from .request import Delta, Output, Request

Event = Delta | Output | DraftlineError | None
"""None: the engine has taken the request."""
SHUTTING_DOWN = "the server is shutting down; try another one"


@dataclass(frozen=True)
class _Client:
    """Who waits for a request: a queue on the client's event loop."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Event]

    def tell(self, event: Event) -> None:
        """From any thread; a loop that has ended hears nothing."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.queue.put_nowait, event)


class Stream:
    """A request that an engine has taken: deltas as they come, then the Output. ``aclose`` cancels it if it has not
    ended; whoever begins a request closes it."""

    def __init__(self, client: _Client, cancel: Callable[[], None]) -> None:
        self._client, self._cancel = client, cancel
        self._over = False

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta | Output:
        """Raises CapacityError if the server ends, and WorkerLostError."""
        if self._over:
            raise StopAsyncIteration
        event = await self._client.queue.get()
        self._over = not isinstance(event, Delta)
        if isinstance(event, DraftlineError):
            raise event
        assert event is not None
        return event

    async def aclose(self) -> None:
        """May be called again."""
        if not self._over:
            self._over = True
            self._cancel()


class AsyncEngine:
    """``run`` in the main thread until ``stop``; ``generate`` on any event loop meanwhile."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._crew = Crew(pipeline.engines)
        self._clients: dict[int, _Client] = {}
        self._index = itertools.count()
        self._commands: deque[Callable[[], None]] = deque()
        self._woken = threading.Event()
        self._stopped = self._over = False
        self.lost: WorkerLostError | None = None
        """Set once the workers are down for good: every request fails with it from then on."""

    @property
    def num_unfinished(self) -> int:
        """Requests that run or wait."""
        return len(self._clients)

    def run(self) -> None:
        """Serve until ``stop``; then cancel what is left and return. The workers are the caller's to close."""
        try:
            while not self._stopped:
                while self._commands:
                    self._commands.popleft()()
                if self.lost is None and self._crew.num_unfinished:
                    self._turn()
                else:
                    self._woken.wait()
                    self._woken.clear()
        finally:  # whatever ended it, nobody may wait for it any more
            self._over = True
            for index in list(self._clients):
                self._end(index, CapacityError(SHUTTING_DOWN))
            while self._commands:
                self._commands.popleft()()
            self._crew.abandon()

    def stop(self) -> None:
        """From any thread or a signal handler: end ``run`` soon."""
        self._stopped = True
        self._woken.set()

    async def begin(self, request: Request) -> Stream:
        """Hand a request to the engine with the fewest, and wait until it has taken it.

        Raises RequestError, CapacityError if too many wait or the server ends, and WorkerLostError."""
        self.pipeline.engine.check(request, "prompt")
        index, client = next(self._index), _Client(asyncio.get_running_loop(), asyncio.Queue())
        self._do(lambda: self._begin(index, request, client))
        stream = Stream(client, lambda: self._do(lambda: self._cancel(index)))
        try:
            if self._over:  # ``run`` may not have seen the command
                raise CapacityError(SHUTTING_DOWN)
            event = await client.queue.get()
            if isinstance(event, DraftlineError):
                raise event
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def generate(self, request: Request) -> AsyncGenerator[Delta | Output, None]:
        """Deltas as they come, then the Output; as ``begin``. Closing the iterator early cancels the request."""
        async with aclosing(await self.begin(request)) as events:
            async for event in events:
                yield event

    async def complete(self, request: Request) -> Output:
        """The whole answer at once; as ``generate``."""
        async with aclosing(self.generate(request)) as events:
            async for event in events:
                if isinstance(event, Output):
                    return event
        raise AssertionError("a request ends with its output")

    # -- in the engines' thread ------------------------------------------------------------------------------

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._woken.set()

    def _begin(self, index: int, request: Request, client: _Client) -> None:
        if self._over or self.lost is not None:
            client.tell(CapacityError(SHUTTING_DOWN) if self._over else self.lost)
            return
        try:
            self._crew.idlest.add(index, request)
        except DraftlineError as error:
            client.tell(error)
            return
        self._clients[index] = client
        client.tell(None)

    def _cancel(self, index: int) -> None:
        if index in self._clients:
            del self._clients[index]
            self._crew.cancel(index)

    def _turn(self) -> None:
        try:
            for output in self._crew.turn(self._listen):
                self._end(output.index, output)
            self._crew.wait()
        except WorkerLostError as error:
            self.lost = error
            for output in error.outputs:
                self._end(output.index, output)

    def _listen(self, delta: Delta) -> None:
        if delta.index in self._clients:
            self._clients[delta.index].tell(delta)

    def _end(self, index: int, event: Event) -> None:
        client = self._clients.pop(index, None)
        if client is not None:
            client.tell(event)
