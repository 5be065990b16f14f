"""The server's life: ports, loading, draining, workers that die, what is left behind."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from leftovers import alive
from serving import SMALL, Server, events, workers_of_server

from draftline.runtime.serve.cli import main

PROMPT = "def read_lines(path):"
LONG = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "stream": True}
RUNNING = "vllm:num_requests_running"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="dl-", dir="/tmp") as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def open_stream(server: Server, max_tokens: int) -> tuple[threading.Thread, list[str]]:
    """A thread that reads a stream to its end, and the lines that it has read."""
    lines: list[str] = []

    def read() -> None:
        body = {**LONG, "max_tokens": max_tokens}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as got:
            assert got.status_code == 200
            lines.extend(line for line in got.iter_lines() if line)

    thread = threading.Thread(target=read)
    thread.start()
    server.metric_becomes(1, RUNNING)
    return thread, lines


def test_a_taken_port_is_one_line_and_exit_code_2_before_anything_is_loaded(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["--port", str(taken.getsockname()[1])]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cannot listen" in err


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--port", "70000"), "65535"),
        (("--port", "x"), "--port"),
        (("--host", "no.such.host.invalid", "--port", "0"), "no.such.host"),
        (("--drain-timeout", "-1"), "--drain-timeout"),
        (("--send-timeout", "0"), "--send-timeout"),
        (("--prot", "1"), "'--port'"),
        (("--chat-template", "nowhere.jinja"), "nowhere.jinja"),
        (("--model", "no-such-model"), "no-such-model"),
        (("--api-key", ""), "--api-key"),
    ],
)
def test_bad_flags_are_one_line_and_exit_code_2(flags, part, capsys):
    assert main(flags) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err


def test_loading_draining_and_the_end(greedy, begun):
    """503 until the model is there; SIGTERM: the stream that runs ends as it would, new ones are refused; exit 0."""
    server = begun(*SMALL, ready=False)
    early = server.get("/health")
    if early.status_code != 200:
        assert early.status_code == 503
        assert early.json()["error"]["code"] == "starting"
        assert server.post("/v1/completions", {"prompt": "x"}).status_code == 503
    server.wait_for("ready on")
    assert server.get("/health").status_code == 200
    thread, lines = open_stream(server, 400)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining")
    assert server.get("/health").json()["error"]["code"] == "shutting_down"
    refused = server.post("/v1/completions", {"prompt": "x"})
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    thread.join(60)
    assert server.wait() == 0
    chunks = events(lines)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert "drained" in server.lines[-2]
    with pytest.raises(httpx.ConnectError):
        server.get("/health")


def test_what_does_not_end_in_time_ends_with_an_error(begun):
    server = begun(*SMALL, "--drain-timeout", "0.3")
    thread, lines = open_stream(server, 1000)
    assert server.stop(signal.SIGINT) == 0
    thread.join(60)
    last = events(lines)[-1]
    assert last["error"]["code"] == "shutting_down"
    assert last["error"]["type"] == "service_unavailable"


def test_the_second_signal_ends_at_once(folder, begun):
    server = begun(*SMALL, "--runtime", "zmq", "--replicas", "2", "--drain-timeout", "100")
    workers = workers_of_server(server)
    assert len(workers) == 2
    assert os.listdir(folder)
    thread, lines = open_stream(server, 1000)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining")
    began = time.monotonic()
    assert server.stop(signal.SIGINT) == 130
    assert time.monotonic() - began < 5
    thread.join(60)
    assert events(lines)[-1]["error"]["code"] == "shutting_down"
    assert not alive(workers, 2)
    assert not os.listdir(folder)


def test_a_killed_worker_costs_no_stream_and_dead_workers_are_told(greedy, folder, begun):
    server = begun(*SMALL, "--runtime", "zmq", "--max-restarts", "2")
    (worker,) = workers_of_server(server)
    lines: list[str] = []
    with httpx.stream("POST", server.url + "/v1/completions", json={**LONG, "max_tokens": 150}, timeout=60) as got:
        for line in got.iter_lines():
            lines += [line] if line else []
            if len(lines) == 20:
                worker.kill()
    chunks = events(lines)
    assert len(chunks) > 30
    plain_text = "".join(c["choices"][0]["text"] for c in chunks)
    assert plain_text == server.text(PROMPT, max_tokens=150, ignore_eos=True, num_speculative_tokens=0)
    assert server.metric("draftline_restarts_total") == 1
    assert server.get("/health").status_code == 200

    thread, lines = open_stream(server, 1000)
    end = time.monotonic() + 60
    while server.get("/health").status_code == 200:
        assert time.monotonic() < end
        for one in workers_of_server(server):
            one.kill()
        time.sleep(0.02)
    thread.join(60)
    assert events(lines)[-1]["error"]["code"] == "workers_lost"
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/health", None)):
        got = server.post(path, body) if body else server.get(path)
        assert got.status_code == 503
        assert got.json()["error"]["code"] == "workers_lost"
    assert server.stop() == 0
    assert not os.listdir(folder)
    assert not [p for p in os.listdir("/dev/shm") if "draftline" in p and str(server.process.pid) in p]
