"""The server's life: ports, loading, draining, workers that die, what is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest
from leftovers import alive
from serving import SMALL, Server, events, workers_of_server

PROMPT = "def read_lines(path):"
LONG = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "stream": True}
RUNNING = "vllm:num_requests_running"


def run(*flags: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "draftline.runtime.serve.cli", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def open_stream(server: Server, max_tokens: int) -> tuple[threading.Thread, list[str]]:
    """A thread that reads a stream to its end, and the lines that it has read."""
    lines: list[str] = []

    def read() -> None:
        with httpx.stream("POST", server.url + "/v1/completions", json={**LONG, "max_tokens": max_tokens}) as got:
            assert got.status_code == 200
            lines.extend(line for line in got.iter_lines() if line)

    thread = threading.Thread(target=read)
    thread.start()
    server.metric_becomes(1, RUNNING)
    return thread, lines


def test_a_taken_port_is_one_line_and_exit_code_2_before_anything_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot listen" in done.stderr
    assert "loading" not in done.stderr


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
def test_bad_flags_are_one_line_and_exit_code_2(flags, part):
    done = run(*flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr
    assert done.stderr.count("\n") == 1


def test_loading_draining_and_the_end(greedy):
    """503 until the model is there; SIGTERM: the stream that runs ends as it would, new ones are refused; exit 0."""
    server = Server(*SMALL, ready=False)
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


def test_what_does_not_end_in_time_ends_with_an_error():
    server = Server(*SMALL, "--drain-timeout", "0.3")
    thread, lines = open_stream(server, 1000)
    assert server.stop(signal.SIGINT) == 0
    thread.join(60)
    last = events(lines)[-1]
    assert last["error"]["code"] == "shutting_down"
    assert last["error"]["type"] == "service_unavailable"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_at_once(number, tmp_path):
    env = {"TMPDIR": str(tmp_path)}
    server = Server(*SMALL, "--runtime", "zmq", "--drain-timeout", "100", env=env)
    workers = workers_of_server(server)
    assert workers
    assert os.listdir(tmp_path)
    thread, lines = open_stream(server, 1000)
    server.process.send_signal(number)
    server.wait_for("draining")
    began = time.monotonic()
    assert server.stop(number) == 128 + number
    assert time.monotonic() - began < 5
    thread.join(60)
    assert events(lines)[-1]["error"]["code"] == "shutting_down"
    assert not alive(workers, 2)
    assert not os.listdir(tmp_path)


def test_a_killed_worker_costs_no_stream_and_dead_workers_are_told(greedy, tmp_path):
    env = {"TMPDIR": str(tmp_path)}
    server = Server(*SMALL, "--runtime", "zmq", "--max-restarts", "2", env=env)
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
    assert not os.listdir(tmp_path)


def test_nothing_is_left_behind(tmp_path):
    env = {"TMPDIR": str(tmp_path)}
    server = Server(*SMALL, "--runtime", "zmq", "--replicas", "2", env=env)
    workers = workers_of_server(server)
    assert len(workers) == 2
    assert len(server.text([PROMPT] * 2, max_tokens=5)) > 0
    assert server.stop() == 0
    assert not alive(workers, 2)
    assert not os.listdir(tmp_path)
    assert not [p for p in Path("/dev/shm").glob("*draftline*") if str(server.process.pid) in p.name]
    assert not psutil.pid_exists(server.process.pid)
