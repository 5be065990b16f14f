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
from dataclasses import dataclass, field
from types import FrameType

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


@dataclass
class Signals:
    """SIGTERM and SIGINT: the first drains, if there is an engine that runs; the next ends at once."""

    state: State
    say: Callable[[str], None]
    engine: AsyncEngine | None = None
    _before: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.engine is None or self.state.phase == "draining":
            raise Ended(number)
        self.state.phase = "draining"
        threading.Thread(target=self._drain, args=(self.engine,), name="draftline-drain", daemon=True).start()
        return None

    def _drain(self, engine: AsyncEngine) -> None:
        """Let running requests finish, but not for ever; then end the engines' loop."""
        self.say(f"draining: {self.state.active} requests run, up to {self.state.options.drain:g} s")
        end = time.monotonic() + self.state.options.drain
        while self.state.active and time.monotonic() < end:
            time.sleep(POLL)
        engine.stop()
