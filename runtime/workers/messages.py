"""Every message between driver and workers, and the one way to put it on a socket and to take it off.

Knows: fields, limits. Does not know: sockets, who sends what when (``loop.py``, ``group.py``).

On the wire a message is two frames: the run's key (16 random bytes that only the driver and its workers have), and
one msgspec struct as msgpack. Where memory is not shared, the raw tensors that the struct announces follow, a frame
each. Nothing is ever unpickled; what is not exactly such a message is refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Annotated

import msgspec

from draftline.graph.errors import TransportError

KEY_BYTES = 16
MAX_HEADER = 64 * 1024
"""Bytes of the longest header: a failure with its traceback."""
MAX_TEXT = 16 * 1024
"""Bytes of a text in it; characters for who reads it."""

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


Shape = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**40)], ...], msgspec.Meta(max_length=8)]


class TensorHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What a raw frame holds."""

    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Shape


Tensors = Annotated[tuple[TensorHeader, ...], msgspec.Meta(max_length=256)]


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, array_like=True):
    """``epoch`` counts the group's starts; a message of another epoch is dropped."""

    epoch: Count


class Ready(_Message, frozen=True):
    """Worker to driver: model loaded, segments captured, ``inbox`` bound."""

    worker: Count
    pid: Count
    inbox: Annotated[str, msgspec.Meta(max_length=256)]


class Peers(_Message, frozen=True):
    """Driver to every worker, once all are ready: where the inboxes are, by number."""

    inboxes: Annotated[tuple[str, ...], msgspec.Meta(max_length=1024)]


class Step(_Message, frozen=True):
    """Driver to the entry's worker: run plan number ``plan``; its inputs are in metadata bank ``bank``, or come
    with the message. ``after``: the number of the plan before, plus one, whose tokens complete them; 0: they are
    complete."""

    step: Count
    plan: Count
    tensors: Tensors = ()
    bank: Count = 0
    after: Count = 0


class Signal(_Message, frozen=True):
    """Worker to worker: what stands before ``edge`` in the sender's program is done."""

    step: Count
    plan: Count
    edge: Count
    tensors: Tensors = ()


class Done(_Message, frozen=True):
    """The exit's worker to the driver: the step is done everywhere."""

    step: Count
    tensors: Tensors = ()


class Failed(_Message, frozen=True):
    """Worker to driver: a stage raised, or another worker did not signal in time."""

    step: Count
    worker: Count
    message: Text
    traceback: Text


class Abort(_Message, frozen=True):
    """Driver to every worker: forget the step, and say so."""

    step: Count


class Idle(_Message, frozen=True):
    """Worker to driver, the answer to Abort: nothing of that step runs here any more."""

    step: Count
    worker: Count


class Stop(_Message, frozen=True):
    """Driver to every worker: end."""


Message = Ready | Peers | Step | Signal | Done | Failed | Abort | Idle | Stop

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


def pack(key: bytes, message: Message) -> list[bytes]:
    """The frames of a message. Raises TransportError if it is too long."""
    header = _ENCODER.encode(message)
    if len(header) > MAX_HEADER:
        raise TransportError(f"a {type(message).__name__} message has {len(header)} bytes, at most {MAX_HEADER} go out")
    return [key, header]


def unpack(key: bytes, frames: Sequence[bytes]) -> tuple[Message, Sequence[bytes]]:
    """The message of these frames, and its raw tensors. Raises TransportError saying what is wrong with them."""
    if len(frames) < 2:
        raise TransportError(f"{len(frames)} frames, a message has 2 at least")
    if len(frames[0]) != KEY_BYTES or not hmac.compare_digest(frames[0], key):
        raise TransportError("the first frame is not this run's key")
    if len(frames[1]) > MAX_HEADER:
        raise TransportError(f"a header of {len(frames[1])} bytes, at most {MAX_HEADER} are read")
    try:
        message = _DECODER.decode(frames[1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(f"the header is no message: {error}") from None
    announced = len(message.tensors) if isinstance(message, Step | Signal | Done) else 0
    if len(frames) - 2 != announced:
        raise TransportError(f"{len(frames) - 2} raw frames, the header announces {announced}")
    return message, frames[2:]


def clip(text: str) -> str:
    """``text`` as UTF-8 can say it, its middle left out where it has more bytes than a message may carry."""
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_TEXT:
        half = MAX_TEXT // 2 - 32
        data = data[:half] + f"\n… ({len(data)} bytes)\n".encode() + data[-half:]
    return data.decode("utf-8", "ignore")
