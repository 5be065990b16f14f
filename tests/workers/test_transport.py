"""Endpoints, keys, messages and raw frames: what is taken and what is refused, with what words."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import torch
import zmq
import zmq.auth
from hypothesis import given
from hypothesis import strategies as st

from draftline.graph.errors import TransportError
from draftline.runtime.cli import main
from draftline.runtime.workers import endpoints, frames, sockets
from draftline.runtime.workers import messages as m
from draftline.runtime.workers.endpoints import Curve, RunDirectory, check_tcp, load_keys

KEY = bytes(range(m.KEY_BYTES))
CURVE = Curve(*zmq.curve_keypair())
ROOT = Path(__file__).parents[2]


# -- run directories -----------------------------------------------------------------------------------------------


@pytest.fixture
def short() -> Path:
    with tempfile.TemporaryDirectory(prefix="dl-") as path:
        yield Path(path)


def test_a_run_directory_is_private_and_its_paths_fit(short):
    directory = RunDirectory(short)
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert len(directory.endpoint("w999.999999").removeprefix("ipc://")) <= endpoints.SUN_PATH
    directory.remove()
    directory.remove()
    assert list(short.iterdir()) == []


def test_a_base_directory_that_is_too_long_or_not_there_is_named(short):
    deep = short / ("d" * 90)
    deep.mkdir()
    with pytest.raises(TransportError, match=r"a Unix socket's path has at most 107; set TMPDIR to a shorter path"):
        RunDirectory(deep)
    assert list(deep.iterdir()) == []
    with pytest.raises(TransportError, match="no run directory can be made in"):
        RunDirectory(short / "nowhere")


def test_run_directories_that_nobody_holds_are_swept_and_no_others(short):
    held, young = RunDirectory(short), short / "draftline-young"
    dead = short / "draftline-dead"
    for path in (dead, young, short / "draftline-strange", short / "other"):
        path.mkdir(mode=0o700)
        (path / "lock").touch()
    (short / "draftline-strange" / "lock").unlink()
    old = time.time() - 3600
    for path in (dead, held.path, short / "draftline-strange", short / "other"):
        os.utime(path, (old, old))
    open_to_others = short / "draftline-open"
    open_to_others.mkdir(mode=0o755)
    os.utime(open_to_others, (old, old))
    endpoints.sweep(short)
    names = {path.name for path in short.iterdir()}
    assert names == {held.path.name, "draftline-young", "draftline-strange", "draftline-open", "other"}
    held.remove()


# -- tcp -------------------------------------------------------------------------------------------------------------

EVERY = ["tcp://*", "tcp://0.0.0.0", "tcp://[::]", "tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://[::]:1"]


@pytest.mark.parametrize("endpoint", EVERY)
def test_every_interface_is_refused(endpoint):
    with pytest.raises(TransportError, match="would listen on every interface; name one host"):
        check_tcp(endpoint, CURVE)


@pytest.mark.parametrize("host", ["0", "00", "0x0", "0.0", "000.0.0.0", "127.1", "0x7f000001"])
def test_addresses_that_only_a_resolver_understands_are_refused(host):
    """Some of them stand for every interface."""
    with pytest.raises(TransportError, match="is not an address; write all four numbers, or a name"):
        check_tcp(f"tcp://{host}", CURVE)
    with pytest.raises(TransportError, match="that is every interface"):
        endpoints.check_bound("tcp://0.0.0.0:5555")
    assert endpoints.check_bound("tcp://127.0.0.1:5555") == "127.0.0.1"


@pytest.mark.parametrize(
    "endpoint", ["", "tcp://", "tcp:127.0.0.1", "udp://127.0.0.1", "127.0.0.1", "tcp://a b", "ipc:x"]
)
def test_what_is_no_endpoint_is_refused(endpoint):
    with pytest.raises(TransportError, match="want ipc, or tcp://HOST"):
        check_tcp(endpoint, CURVE)


def test_ports():
    assert check_tcp("tcp://127.0.0.1", CURVE) == ("127.0.0.1", None)
    assert check_tcp("tcp://worker-7.example:0", CURVE) == ("worker-7.example", 0)
    assert check_tcp("tcp://[::1]:5555", CURVE) == ("[::1]", 5555)
    with pytest.raises(TransportError, match="port 70000 is not a port"):
        check_tcp("tcp://127.0.0.1:70000", CURVE)


@pytest.mark.parametrize("curve", [None, Curve(b"", b""), Curve(CURVE.public, b"")])
def test_tcp_without_keys_is_refused(curve):
    with pytest.raises(TransportError, match="tcp needs CURVE keys; give --curve-keys FILE"):
        check_tcp("tcp://127.0.0.1", curve)


def test_key_files(tmp_path):
    public, secret = (Path(p) for p in zmq.auth.create_certificates(tmp_path, "draftline"))
    secret.chmod(0o640)
    with pytest.raises(TransportError, match=r"others may read this secret key \(mode 640\); chmod 600 it"):
        load_keys(secret)
    secret.chmod(0o600)
    keys = load_keys(secret)
    assert zmq.curve_public(keys.secret) == keys.public
    public.chmod(0o600)
    with pytest.raises(TransportError, match="holds no secret key of 40 characters; make one with"):
        load_keys(public)
    for text in ("", "metadata\ncurve\n", "\0\1\2"):
        secret.write_text(text)
        with pytest.raises(TransportError, match=r"draftline\.key_secret: "):
            load_keys(secret)
    with pytest.raises(TransportError, match="not a CURVE certificate"):
        load_keys(tmp_path / "nowhere")


def test_a_secret_key_that_does_not_fit_its_public_key_is_refused(tmp_path):
    _, secret = (Path(p) for p in zmq.auth.create_certificates(tmp_path, "draftline"))
    secret.chmod(0o600)
    secret.write_text(secret.read_text().replace(load_keys(secret).public.decode(), CURVE.public.decode()))
    with pytest.raises(TransportError, match="the public key is not that of the secret key"):
        load_keys(secret)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--transport", "tcp://0.0.0.0"], "would listen on every interface"),
        (["--transport", "tcp://127.0.0.1"], "tcp needs CURVE keys"),
        (["--transport", "tcp://127.0.0.1", "--curve-keys", "nowhere"], "nowhere: not a CURVE certificate"),
        (["--transport", "pipe"], "want ipc, or tcp://HOST"),
        (["--curve-keys", "nowhere"], "--curve-keys is for tcp"),
        (["--runtime", "inline", "--transport", "tcp://127.0.0.1"], "--transport is for --runtime zmq"),
    ],
)
def test_flags_that_are_refused(capsys, flags, says):
    code = main(["--graph", "mtp-zmq.yaml", "--prompt", "x", "--no-plan-cache", *flags])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("pipeline-run: error: ")
    assert says in err


def test_a_stranger_without_the_key_pair_is_not_let_in():
    context = zmq.Context()
    guard = sockets.admit_only(context, CURVE)
    inbox = sockets.inbox(context, "tcp://127.0.0.1:*", CURVE, 0)
    where = inbox.get_string(zmq.LAST_ENDPOINT)
    public, secret = zmq.curve_keypair()
    stranger, open_, friend = (context.socket(zmq.PUSH) for _ in range(3))
    stranger.curve_publickey, stranger.curve_secretkey, stranger.curve_serverkey = public, secret, CURVE.public
    friend.curve_publickey, friend.curve_secretkey, friend.curve_serverkey = CURVE.public, CURVE.secret, CURVE.public
    try:
        for socket, text in ((stranger, b"stranger"), (open_, b"open"), (friend, b"friend")):
            socket.connect(where)
            socket.send(text)
        assert inbox.poll(5000)
        assert inbox.recv() == b"friend"
        assert not inbox.poll(500)
    finally:
        guard.stop()
        context.destroy(linger=0)


# -- messages and raw frames -----------------------------------------------------------------------------------------

counts = st.integers(0, 2**62 - 1)
headers = st.lists(
    st.builds(m.TensorHeader, st.sampled_from(list(frames.ALLOWED)), st.tuples(st.integers(0, 9), st.integers(0, 9))),
    max_size=3,
).map(tuple)
every_message = st.one_of(
    st.builds(m.Ready, counts, counts, counts, st.text(max_size=20)),
    st.builds(m.Peers, counts, st.lists(st.text(max_size=9), max_size=3).map(tuple)),
    st.builds(m.Step, counts, counts, counts, headers),
    st.builds(m.Signal, counts, counts, counts, counts, headers),
    st.builds(m.Done, counts, counts, headers),
    st.builds(m.Failed, counts, counts, counts, st.text(), st.text()),
    st.builds(m.Abort, counts, counts),
    st.builds(m.Idle, counts, counts, counts),
    st.builds(m.Stop, counts),
)


@given(every_message)
def test_what_is_packed_is_unpacked(message):
    raw = [b"x"] * len(getattr(message, "tensors", ()))
    assert m.unpack(KEY, [*m.pack(KEY, message), *raw]) == (message, raw)


def test_limits_of_messages():
    with pytest.raises(TransportError, match=r"a Peers message has \d+ bytes, at most 65536 go out"):
        m.pack(KEY, m.Peers(1, ("x" * 100,) * 1000))
    long = "word " * 10_000
    assert len(m.clip(long)) <= m.MAX_TEXT
    m.unpack(KEY, m.pack(KEY, m.Failed(1, 1, 0, m.clip(long), m.clip("ü" * 20_000))))
    for text in ("漢" * 20_000, "bad \udce9 surrogate", "\x00"):
        m.unpack(KEY, m.pack(KEY, m.Failed(1, 1, 0, m.clip(text), m.clip(text))))
    for frames_, says in (
        ([], "0 frames"),
        ([KEY], "1 frames"),
        ([b"", b""], "not this run's key"),
        ([bytes(16), b""], "not this run's key"),
        ([KEY, bytes(m.MAX_HEADER + 1)], "a header of 65537 bytes"),
        ([KEY, b"\xc1"], "the header is no message"),
        ([*m.pack(KEY, m.Stop(1)), b""], "1 raw frames, the header announces 0"),
        (m.pack(KEY, m.Step(1, 1, 1, (m.TensorHeader("int64", (1,)),))), "0 raw frames, the header announces 1"),
    ):
        with pytest.raises(TransportError, match=says):
            m.unpack(KEY, frames_)


DTYPES = [getattr(torch, name) for name in frames.ALLOWED]


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.booleans())
def test_raw_frames_carry_the_bits(dtype, shape, turned):
    source = torch.randint(0, 2, shape).to(dtype)
    source = source.mT if turned and source.dim() > 1 else source
    target = torch.ones(source.shape, dtype=dtype)
    frames.take(*frames.put([source]), [target])
    assert torch.equal(source, target)


def test_raw_frames_that_are_not_what_the_plan_says_are_refused_before_anything_is_copied():
    good, target = torch.arange(6).view(2, 3), torch.zeros(2, 3, dtype=torch.int64)
    header, raw = frames.put([good, good])
    wrong = [
        (header[:1], raw, [target, target], "2 frames and 1 headers for 2 tensors"),
        (header, [raw[0], raw[1][:-1]], [target, target], "frame 1 has 47 bytes"),
        (header, [raw[0], raw[1] + b"x"], [target, target], "frame 1 has 49 bytes"),
        ((header[0], m.TensorHeader("int64", (3, 2))), raw, [target, target], r"frame 1 is int64 \(3, 2\), not"),
        ((header[0], m.TensorHeader("int32", (2, 3))), raw, [target, target], r"frame 1 is int32 \(2, 3\), not int64"),
        ((header[0], m.TensorHeader("object", (2, 3))), raw, [target, target], "frame 1: dtype 'object' may not"),
    ]
    for headers_, raw_, into, says in wrong:
        with pytest.raises(TransportError, match=says):
            frames.take(headers_, raw_, into)
        assert not target.any()
    with pytest.raises(TransportError, match="dtype complex64 may not travel; allowed: int64"):
        frames.put([torch.zeros(1, dtype=torch.complex64)])


def test_socket_options_are_set_by_hand():
    context = zmq.Context()
    try:
        inbox = sockets.inbox(context, "inproc://x", None, 0)
        outbox = sockets.outbox(context, "inproc://x")
        assert inbox.getsockopt(zmq.RCVHWM) == sockets.INBOX_HWM
        assert inbox.getsockopt(zmq.MAXMSGSIZE) == 2 * m.MAX_HEADER
        assert outbox.getsockopt(zmq.SNDHWM) == sockets.OUTBOX_HWM
        assert outbox.getsockopt(zmq.LINGER) == sockets.LINGER_MS > 0  # its last message may be an answer
        with pytest.raises(TransportError, match="cannot be bound"):
            sockets.inbox(context, "inproc://x", None, 0)
        for _ in range(sockets.OUTBOX_HWM + sockets.INBOX_HWM):
            sockets.post(outbox, [b"x"])
        with pytest.raises(TransportError, match="wait to be taken"):
            sockets.post(outbox, [b"x"])
    finally:
        context.destroy(linger=0)


def test_no_pickle_on_any_socket():
    """By git grep, over every file that is kept."""

    def grep(pattern: str) -> set[str]:
        done = subprocess.run(
            ["git", "grep", "-lE", pattern, "--", "*.py", ":!tests"], cwd=ROOT, capture_output=True, text=True
        )
        return set(done.stdout.split())

    assert grep("pyobj|recv_serialized|send_serialized") == set()
    assert grep("cloudpickle") == {"runtime/workers/ship.py"}
    assert grep(r"import pickle|from pickle|[^d]pickle\.") == set()
    assert "runtime/workers/sockets.py" in grep("zmq")  # the pattern search itself works
