"""A local peer that sends what is no message, to every socket there is: counted, refused, and no token changes.

10 000 frames: random ones; with the run's key in front; real messages cut short, changed, made longer or sent to the
wrong worker. Frames that are too long, and bytes that are not zmq's, end the connection; that is counted too.
"""

from __future__ import annotations

import socket as sockets
import time
from collections.abc import Callable

import msgspec
import pytest
import zmq
from decoding import decode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftline.graph.errors import TransportError
from draftline.runtime.pipeline import Pipeline, open_pipeline
from draftline.runtime.workers import messages as m

EXAMPLES, PER_INBOX = 42, 80
"""42 × 80 × 3 inboxes = 10 080 messages."""
STRANGERS = 3000
"""More than the events for which libzmq has room unless it is told otherwise: twice 1000."""


@pytest.fixture(scope="module")
def pipeline(base):
    with open_pipeline("mtp-zmq.yaml", max_num_seqs=3) as pipeline:
        decode(pipeline, new=2)
        yield pipeline


@pytest.fixture(scope="module")
def inboxes(pipeline):
    """A stranger's socket to the driver and to each worker."""
    context = zmq.Context()
    runtime = pipeline.engine.runtime
    where = [runtime._roster._inbox.get_string(zmq.LAST_ENDPOINT), *runtime._where]
    out = [context.socket(zmq.PUSH) for _ in where]
    for socket, endpoint in zip(out, where, strict=True):
        socket.connect(endpoint)
    yield out
    context.destroy(linger=0)


def real_messages(epoch: int) -> list[m.Message]:
    header = m.TensorHeader("float32", (2, 3))
    return [
        m.Ready(epoch, 0, 1, "ipc://x"),
        m.Peers(epoch, ("ipc://x", "ipc://y")),
        m.Step(epoch, 7, 0, (header,)),
        m.Signal(epoch, 7, 0, 0),
        m.Done(epoch, 7),
        m.Failed(epoch, 7, 1, "no", "Traceback"),
        m.Abort(epoch, 7),
        m.Idle(epoch, 7, 1),
        m.Stop(epoch),
    ]


def is_message(key: bytes, frames: list[bytes]) -> bool:
    try:
        m.unpack(key, frames)
    except TransportError:
        return False
    return True


def no_messages(key: bytes, epoch: int) -> st.SearchStrategy[list[bytes]]:
    """Frames that no receiver may take for a message."""
    whole = st.sampled_from([msgspec.msgpack.encode(x) for x in real_messages(epoch)])
    cut = whole.flatmap(lambda b: st.integers(0, len(b) - 1).map(lambda n: b[:n]))
    longer = st.tuples(whole, st.binary(min_size=1, max_size=8)).map(lambda p: p[0] + p[1])
    changed = st.tuples(whole, st.integers(0, 200), st.integers(1, 255)).map(_flip)
    deep = st.integers(100, 5000).map(lambda n: b"\x91" * n)
    header = st.one_of(cut, longer, changed, deep, st.binary(max_size=64))
    keyed = st.tuples(header, st.lists(st.binary(max_size=16), max_size=3)).map(lambda p: [key, p[0], *p[1]])
    anything = st.lists(st.binary(max_size=64), min_size=1, max_size=4)
    wrong_key = whole.map(lambda b: [bytes(m.KEY_BYTES), b])
    long = st.integers(m.MAX_HEADER + 1, 2 * m.MAX_HEADER).map(lambda n: [key, bytes(n)])
    usual = st.one_of(keyed, keyed, keyed, anything, wrong_key)
    return st.one_of(*[usual] * 19, long).filter(lambda frames: not is_message(key, frames))


def _flip(parts: tuple[bytes, int, int]) -> bytes:
    data = bytearray(parts[0])
    data[parts[1] % len(data)] ^= parts[2]
    return bytes(data)


def until(pipeline: Pipeline, holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Run steps, which also count what the workers have refused, until it holds."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        pipeline.generate(["x"], max_new_tokens=2)
    return holds()


@pytest.mark.timeout(300)
def test_ten_thousand_frames_that_are_no_message(pipeline, inboxes, truth):
    runtime = pipeline.engine.runtime
    batches = st.lists(no_messages(runtime._roster._key, runtime.epoch), min_size=PER_INBOX, max_size=PER_INBOX)
    sent = 0

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(batches)
    def send(batch):
        nonlocal sent
        for socket in inboxes:
            for frames in batch:
                socket.send_multipart(frames)
            sent += len(batch)
        assert until(pipeline, lambda: runtime.totals.refused >= sent)
        assert runtime.totals.refused == sent

    send()
    assert sent >= 10_000
    assert runtime.totals.restarts == runtime.totals.late == runtime.totals.hangups == 0
    assert decode(pipeline) == truth


@pytest.mark.timeout(60)
def test_a_real_message_at_the_wrong_place_or_time_is_refused_or_late(pipeline, inboxes, truth):
    runtime = pipeline.engine.runtime
    key, epoch = runtime._roster._key, runtime.epoch
    refused, late = runtime.totals.refused, runtime.totals.late
    raw = [m.Step(epoch, 10**9, 0, (m.TensorHeader("float32", (1,)),)), m.Step(epoch, 10**9, 99)]
    to_worker = [*real_messages(epoch)[4:6], *raw, m.Signal(epoch, 10**9, 0, 99), m.Peers(epoch, ("ipc://x",))]
    to_driver = [m.Stop(epoch), m.Abort(epoch, 0), m.Peers(epoch, ()), m.Ready(epoch, 0, 1, "ipc://x")]
    for worker in inboxes[1:]:
        for message in to_worker:
            worker.send_multipart([*m.pack(key, message), *[b"1234"] * len(getattr(message, "tensors", ()))])
        worker.send_multipart(m.pack(key, m.Stop(epoch - 1)))
        worker.send_multipart(m.pack(key, m.Step(epoch, 0, 0)) if worker is inboxes[1] else m.pack(key, m.Stop(0)))
    for message in to_driver:
        inboxes[0].send_multipart(m.pack(key, message))
    inboxes[0].send_multipart(m.pack(key, m.Done(epoch, 0)))
    assert until(pipeline, lambda: runtime.totals.refused == refused + 2 * len(to_worker) + len(to_driver))
    assert until(pipeline, lambda: runtime.totals.late == late + 5)
    assert runtime.totals.restarts == 0
    assert decode(pipeline) == truth


@pytest.mark.timeout(60)
def test_strangers_that_come_and_go_by_the_thousand_block_nobody(truth):
    """libzmq's own thread tells of each, and would wait where there is no room for that."""
    with open_pipeline("mtp-zmq.yaml", max_num_seqs=3) as pipeline:
        runtime = pipeline.engine.runtime
        for _ in range(0, STRANGERS, 100):
            context = zmq.Context()
            for _ in range(100):
                stranger = context.socket(zmq.PUSH)
                stranger.connect(runtime._roster._inbox.get_string(zmq.LAST_ENDPOINT))
                stranger.send(b"x")
                stranger.close(linger=5000)
            context.term()  # waits until all are there, and gives their descriptors back
        assert until(pipeline, lambda: runtime.totals.hangups == STRANGERS)
        assert decode(pipeline) == truth
        assert runtime.totals.restarts == 0
        began = time.monotonic()
    assert time.monotonic() - began < 2


@pytest.mark.timeout(60)
def test_frames_that_are_too_long_and_bytes_that_are_not_zmq_end_the_connection(pipeline, inboxes, truth):
    runtime = pipeline.engine.runtime
    hangups, key = runtime.totals.hangups, runtime._roster._key
    context = zmq.Context()
    ended = 0
    for inbox in inboxes:
        where = inbox.get_string(zmq.LAST_ENDPOINT)
        for size in (2 * m.MAX_HEADER + 1, 2**24):
            stranger = context.socket(zmq.PUSH)
            stranger.setsockopt(zmq.RECONNECT_IVL, -1)
            stranger.connect(where)
            stranger.send_multipart([key, bytes(size)])
            ended += 1
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\xff\x00\x00", b""):
            plain = sockets.socket(sockets.AF_UNIX)
            plain.connect(where.removeprefix("ipc://"))
            plain.sendall(junk)
            plain.close()
    assert until(pipeline, lambda: runtime.totals.hangups >= hangups + ended)
    context.destroy(linger=0)
    assert runtime.totals.restarts == 0
    assert decode(pipeline) == truth
