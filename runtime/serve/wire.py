"""Answers onto the wire: whole or as server-sent events, given up when the client is gone.

Knows: ASGI, uvicorn's transport. Does not know: what is said.

Back-pressure: ``send`` waits while a client's socket is full, so its pieces wait in the engine's queue, which holds no
more than its max_tokens; others are not held up. A socket that stays full for ``Options.send`` seconds is cut off.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import SERVER, HttpError

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


class Gone(Exception):
    """The client has closed the connection; there is nobody to tell anything."""


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """``work``, cancelled once the client has gone. Raises Gone."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(value: Any) -> bytes:
    """One server-sent event. ASCII: nothing in it can be taken for the end of a line."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


class Events(Response):
    """A stream of objects, then ``[DONE]``. An error after the first is an event of its own, as in vLLM."""

    media_type = "text/event-stream"

    def __init__(self, objects: AsyncGenerator[Any, None], close: Callable[[], Awaitable[None]]) -> None:
        """``close`` is called in any case, when all is said or the client has gone."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._objects, self._close = objects, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.ensure_future(self._stream(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            for one in (task, gone):
                one.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)
            await self._close()

    async def _stream(self, send: Send) -> None:
        async with aclosing(self._objects) as objects:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async for one in objects:
                    await send({"type": "http.response.body", "body": event(one), "more_body": True})
            except HttpError as error:
                await send({"type": "http.response.body", "body": event(error.body()), "more_body": True})
            except Exception:  # as in ``app._bound``, but the head is sent already; whoever called logs it
                body = HttpError(500, "the server has made a mistake", kind=SERVER, code="internal_error").body()
                with suppress(OSError):
                    await send({"type": "http.response.body", "body": event(body), "more_body": True})
                raise
            await send({"type": "http.response.body", "body": DONE, "more_body": False})


def patient(send_seconds: float, receive_seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with limits: on a client that does not read, and on one that connects and does not send the
    head of a request."""

    class Patient(H11Protocol):
        _full: asyncio.TimerHandle | None = None
        _silent: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._silent = self.loop.call_later(receive_seconds, transport.abort)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                _stop(self._silent)
                self._silent = None
            elif self._silent is None and (self.cycle is None or self.cycle.response_complete):
                self._silent = self.loop.call_later(receive_seconds, self.transport.abort)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._full = self.loop.call_later(send_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _stop(self._full)

        def connection_lost(self, exc: Exception | None) -> None:
            _stop(self._full)
            _stop(self._silent)
            super().connection_lost(exc)

    return Patient


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
