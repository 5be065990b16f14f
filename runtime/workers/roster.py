"""The processes and sockets of one group: start them, hear from them, end them, leave nothing behind.

Knows: the run directory, pipes, the driver's inbox, an outbox per worker. Does not know: steps, plans, what a message
means.
"""

from __future__ import annotations

import math
import os
import secrets
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from draftline.graph.errors import TransportError, WorkerLostError

from . import checks
from . import messages as m
from .boot import send
from .endpoints import Curve, RunDirectory, check_bound, check_tcp, load_keys
from .launch import Crew, Launch
from .process import Child, signal_all, spawn, stop, wait
from .sockets import admit_only, hangups, inbox, outbox, post, watch_hangups

FLOOD = 1000
"""Messages that are taken at once: a peer that floods the inbox must not keep the driver from its deadlines."""


class Roster:
    """``close`` it; at exit, or when it is forgotten, it is closed in any case."""

    def __init__(self, launch: Launch) -> None:
        """Raises TransportError for an endpoint that is refused."""
        self._launch, self._key = launch, secrets.token_bytes(m.KEY_BYTES)
        self.curve: Curve | None = None
        self._host, port = "", None
        if launch.transport != "ipc":
            self.curve = None if launch.curve_keys is None else load_keys(launch.curve_keys)
            self._host, port = check_tcp(launch.transport, self.curve)
        self._directory = RunDirectory(launch.directory)
        self._held = held = _Held(self._directory, launch.limits.grace)
        self.children = held.children
        self._close = weakref.finalize(self, _close, held)
        try:
            held.pipe = os.pipe()
            held.context = zmq.Context()
            held.guard = None if self.curve is None else admit_only(held.context, self.curve)
            where = self._endpoint("driver") if port is None else launch.transport
            most = 0 if launch.shares_memory else launch.max_frame
            self._inbox = inbox(held.context, where, self.curve, most)
            self._hangups = watch_hangups(self._inbox)
            self._outboxes: list[zmq.Socket] = []
        except BaseException:
            self._close()
            raise
        self._death_pipe = held.pipe[0]
        if self._host:  # a name, or an interface's, stands for an address, which is what workers will say too
            self._host = check_bound(self._inbox.get_string(zmq.LAST_ENDPOINT))

    def _endpoint(self, name: str) -> str:
        """Where a socket binds: a path in the run directory, or any free port of the host."""
        return f"tcp://{self._host}:*" if self._host else self._directory.endpoint(name)

    @property
    def directory(self) -> str:
        return str(self._directory.path)

    def start(self, crew: Crew, epoch: int, memory_fd: int) -> None:
        """Start every worker of the crew. Raises WorkerStartError, and UsageError outside the main thread."""
        driver = self._inbox.get_string(zmq.LAST_ENDPOINT)
        for n in range(len(crew.devices)):
            boot = crew.boot(
                self._launch,
                n,
                key=self._key,
                epoch=epoch,
                inbox=self._endpoint(f"w{n}.{epoch}"),
                driver=driver,
                memory_fd=memory_fd,
                curve=None if self.curve is None else (self.curve.public, self.curve.secret),
            )
            timeout = self._launch.limits.start_timeout
            child, pipe = spawn(boot, self._directory.path, self._death_pipe)
            self.children.append(child)
            send(pipe, boot, crew.luggage, timeout)
        hangups(self._hangups)  # of the workers before these
        self._poller = zmq.Poller()
        for source in self.sources():
            self._poller.register(source, zmq.POLLIN)

    def connect(self, inboxes: Sequence[str]) -> None:
        """Open an outbox to every worker, by number."""
        assert self._held.context is not None
        self._outboxes += [outbox(self._held.context, where, self.curve) for where in inboxes]

    def sources(self) -> list[Any]:
        """What becomes readable when a message comes or a worker ends."""
        return [self._inbox, *(child.sentinel for child in self.children if child.sentinel is not None)]

    def post(self, worker: int, message: m.Message, tensors: Sequence[bytes] = ()) -> None:
        """Send a message to a worker. Raises WorkerLostError if it has stopped taking any."""
        try:
            post(self._outboxes[worker], [*m.pack(self._key, message), *tensors])
        except TransportError as error:
            raise WorkerLostError(f"{self.children[worker]} takes no messages: {error}") from None

    def poll(self, timeout: float) -> Child | None:
        """Wait up to ``timeout`` seconds for a message or an end; gives a worker that has ended."""
        events = dict(self._poller.poll(math.ceil(timeout * 1000)))
        for child in self.children:
            if (child.sentinel is None or child.sentinel in events) and not child.alive():
                return child
        return None

    def receive(self) -> Iterator[tuple[m.Message, Sequence[bytes]] | TransportError]:
        """Yield what has come: messages with their raw frames, and an error for what is none."""
        for _ in range(FLOOD):
            try:
                frames = self._inbox.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield m.unpack(self._key, frames)
            except TransportError as error:
                yield error

    def hangups(self) -> int:
        """Connections to the inbox that ended since the last call, or since the workers were started."""
        return hangups(self._hangups)

    def expected(self, message: m.Ready) -> bool:
        """Whether one of the children says this."""
        name = f"w{message.worker}.{message.epoch}"
        return checks.ready(message, [child.pid for child in self.children], self._endpoint(name))

    def kill(self, epoch: int) -> None:
        """End every worker at once; nothing of theirs is needed any more."""
        for child in self.children:
            child.process.kill()
        stop(self.children, 0.0)
        self.children.clear()
        while self._outboxes:
            self._outboxes.pop().close(0)
        self._directory.forget(f"*.{epoch}")

    def retire(self, asked: bool) -> None:
        """Have the workers end, and do not wait. ``asked``: they were told to, so SIGTERM comes later."""
        self._held.since = time.monotonic()
        self._held.asked = asked
        if not asked:
            signal_all(self.children)

    def close(self) -> None:
        """End the workers, remove the run directory. May be called again."""
        self._close()


@dataclass
class _Held:
    """What must be given back, as far as it is there. ``since``: when the workers were asked to end."""

    directory: RunDirectory
    grace: float
    children: list[Child] = field(default_factory=list)
    pipe: tuple[int, int] | None = None
    context: zmq.Context | None = None
    guard: ThreadAuthenticator | None = None
    asked: bool = False
    since: float | None = None


def _close(held: _Held) -> None:
    try:
        spent = 0.0 if held.since is None else time.monotonic() - held.since
        left = max(0.0, held.grace - spent)
        if held.asked:
            wait(held.children, left)
            left = held.grace
        stop(held.children, left)
    finally:
        try:
            if held.guard is not None:
                held.guard.stop()
            if held.context is not None:
                held.context.destroy(linger=0)  # closes whatever socket is still open, too
        finally:
            for fd in held.pipe or ():
                os.close(fd)
            held.directory.remove()
