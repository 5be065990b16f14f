"""The server's life: listen, load, serve, drain, end.

Knows: threads, signals, the order in which things begin and end. Does not know: HTTP.

The HTTP server runs in a thread of its own from the moment the port is bound, so that ``/health`` answers while the
model loads. The engines run in the main thread, because workers end with the thread that started them.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from ..asynchronous import AsyncEngine
from .listen import Listener
from .state import Options, State
from .wire import patient

LINGER = 5
"""Seconds that the last answers may take to go out once all requests have ended."""
POLL = 0.02


class Ended(BaseException):
    """A signal that ends the server at once. ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Web:
    """uvicorn in a thread."""

    def __init__(self, app: object, listener: Listener, options: Options) -> None:
        self._listener = listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                http=patient(options.send, options.receive),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=options.access_log,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=LINGER,
            )
        )
        self._thread = threading.Thread(target=self._run, name="draftline-http", daemon=True)

    def _run(self) -> None:
        self._server.run([self._listener])

    def __enter__(self) -> Web:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Answers that are under way go out, then connections are closed."""
        self._server.should_exit = True
        self._thread.join(LINGER + 2)
        self._listener.close()

    def hurry(self) -> None:
        """Wait for no client any more."""
        self._server.force_exit = True


class Signals:
    """SIGTERM and SIGINT: the first drains, if ``engine`` runs already; the next, or one before, ends at once."""

    def __init__(self, state: State, say: Callable[[str], None]) -> None:
        self._state, self._say = state, say
        self.engine: AsyncEngine | None = None
        self.hurry: Callable[[], None] = lambda: None
        self._ending, self._ended = False, threading.Event()
        self._drainer: threading.Thread | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._drainer is not None:
            self._drainer.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, engine: AsyncEngine) -> None:
        """Serve until a signal. Raises Ended if there were two."""
        self.engine = engine
        try:
            engine.run()
        finally:
            self._ending = True  # from here on all that is left has a deadline of its own
            self._state.phase = "draining"

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._ending:
            self.hurry()
        elif self.engine is None or self._state.phase == "draining":
            self._ending = True
            self.hurry()
            raise Ended(number)
        else:
            self._state.phase = "draining"
            self._drainer = threading.Thread(target=self._drain, args=(self.engine,), name="draftline-drain")
            self._drainer.start()

    def _drain(self, engine: AsyncEngine) -> None:
        """Let running requests finish, but not for ever; then end the engines' loop."""
        self._say(f"draining: {self._state.active} requests run, up to {self._state.options.drain:g} s")
        end = time.monotonic() + self._state.options.drain
        while self._state.active and time.monotonic() < end and not self._ended.wait(POLL):
            pass
        engine.stop()
