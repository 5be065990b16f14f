"""The two sockets that there are: every process has one inbox, and an outbox to whom it writes.

Knows: socket options, and why they are what they are. Does not know: messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq
from zmq.auth.thread import ThreadAuthenticator

from draftline.graph.errors import TransportError

from .endpoints import Curve
from .messages import MAX_HEADER

INBOX_HWM = 1024
"""Frames that may wait in an inbox. Drivers and workers never have more than a handful under way; what comes on top
is from somebody else, and stays at the sender."""

OUTBOX_HWM = 64
LINGER_MS = 500
"""How long a process that ends still tries to deliver: its last message may be the answer that is waited for."""


def inbox(context: zmq.Context, endpoint: str, curve: Curve | None, max_frame: int) -> zmq.Socket:
    """A bound PULL socket that takes frames of up to ``max_frame`` bytes, and of twice a header in any case.

    Raises TransportError if it cannot be bound.
    """
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, INBOX_HWM)
    # libzmq hangs up on who sends more, before it is in memory.
    socket.setsockopt(zmq.MAXMSGSIZE, max(2 * MAX_HEADER, max_frame))
    socket.setsockopt(zmq.LINGER, 0)
    if curve is not None:
        socket.curve_secretkey, socket.curve_publickey, socket.curve_server = curve.secret, curve.public, True
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise TransportError(f"{endpoint}: cannot be bound: {error}") from None
    return socket


def watch_hangups(socket: zmq.Socket) -> zmq.Socket:
    """A socket that tells the ends of connections to an inbox."""
    where = f"inproc://hangups-{socket.fileno()}"
    socket.monitor(where, zmq.EVENT_DISCONNECTED)
    monitor = socket.context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)  # no limit: libzmq's own thread waits where an event has no room
    monitor.connect(where)
    return monitor


def hangups(monitor: zmq.Socket) -> int:
    """Connections that ended since the last call. An inbox's own peers stay connected for as long as they live; the
    others are strangers, who went away or whom libzmq cut off for a frame that is too long or not zmq's."""
    count = 0
    while int(monitor.get(zmq.EVENTS)) & zmq.POLLIN:
        monitor.recv_multipart(zmq.NOBLOCK)
        count += 1
    return count


def admit_only(context: zmq.Context, curve: Curve) -> ThreadAuthenticator:
    """Let nobody connect to the context's CURVE sockets who has not proved to own this key pair; ``stop`` it."""
    guard = ThreadAuthenticator(context)
    guard.start()
    guard.configure_curve_callback("*", credentials_provider=_Only(curve.public))
    return guard


class _Only:
    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the client's key (Z85) is ours."""
        return key == self._public


def outbox(context: zmq.Context, endpoint: str, curve: Curve | None = None) -> zmq.Socket:
    """A PUSH socket to somebody's inbox, which may not be there yet."""
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, OUTBOX_HWM)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, 10)
    if curve is not None:
        socket.curve_secretkey, socket.curve_publickey, socket.curve_serverkey = (
            curve.secret,
            curve.public,
            curve.public,
        )
    socket.connect(endpoint)
    return socket


def post(socket: zmq.Socket, frames: Sequence[bytes]) -> None:
    """Send without waiting. Raises TransportError if the other side has stopped taking messages."""
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        raise TransportError(f"{OUTBOX_HWM} messages to {socket.LAST_ENDPOINT!r} wait to be taken") from None
