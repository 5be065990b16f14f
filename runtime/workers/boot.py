"""What a worker is told when it starts, and the pipe that it comes through.

Knows: the boot record, framing on the pipe. Does not know: what a worker does with it.
"""

from __future__ import annotations

import os
import select
import struct
import time
from typing import Any

import msgspec

from draftline.graph.errors import WorkerStartError

from ..deployment import Sizes

_LENGTHS = struct.Struct("<QQ")


class Boot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``inbox``: where this worker binds; ``driver``: the driver's inbox. ``plans``: JSON, by number.
    ``uses``: models that this worker's stages use. ``cores``: CPUs that it owns, on which it computes with
    ``threads`` threads. ``path``: the driver's sys.path. ``heartbeat``: seconds between two signs of life while it is
    idle. ``curve``: CURVE key pair of tcp inboxes."""

    key: bytes
    epoch: int
    index: int
    device: str
    devices: list[str]
    inbox: str
    driver: str
    plans: list[str]
    memory_fd: int
    trace: bool
    shares_memory: bool
    max_frame: int
    model: str
    mtp: str
    draft_model: str
    sizes: Sizes
    uses: list[str]
    cores: list[int]
    threads: int
    path: list[str]
    heartbeat: float
    curve: tuple[bytes, bytes] | None = None


def send(fd: int, boot: Boot, luggage: bytes, timeout: float) -> None:
    """Write everything into the pipe and close it. Raises WorkerStartError if the child does not take it."""
    header = msgspec.msgpack.encode(boot)
    data = memoryview(_LENGTHS.pack(len(header), len(luggage)) + header + luggage)
    os.set_blocking(fd, False)
    writable = select.poll()  # select() takes no descriptor above 1023
    writable.register(fd, select.POLLOUT)
    end = time.monotonic() + timeout
    try:
        while data:
            left = end - time.monotonic()
            if left <= 0 or not writable.poll(left * 1000):
                raise WorkerStartError(f"worker {boot.index} ({boot.device}) did not read its boot record")
            data = data[os.write(fd, data) :]
    except BrokenPipeError:
        pass  # it is dead already; the handshake says so, with what it left on stderr
    finally:
        os.close(fd)


def receive(fd: int) -> tuple[Boot, bytes]:
    """In the child: the record, and the luggage as bytes."""
    with os.fdopen(fd, "rb") as pipe:
        lengths = pipe.read(_LENGTHS.size)
        header, luggage = _LENGTHS.unpack(lengths)
        boot: Any = msgspec.msgpack.decode(pipe.read(header), type=Boot)
        return boot, pipe.read(luggage)
