"""Clients that go away, read slowly or never, send half a request: none of them holds up another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from serving import Server, streamed

PROMPT = "def read_lines(path):"
LONG = {"prompt": PROMPT, "max_tokens": 1000, "temperature": 0, "ignore_eos": True}
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """One slot, one place to wait, little patience."""
    flags = ("--max-num-seqs", "1", "--max-waiting", "1", "--send-timeout", "1", "--receive-timeout", "1")
    with Server("-K", "3", "--threads", "1", "--api-key", "secret", *flags) as one:
        yield one


@pytest.fixture(scope="module")
def key() -> dict[str, str]:
    return {"Authorization": "Bearer secret"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_socket_frees_its_slot(server: Server, stream):
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    clients = [server.raw({**LONG, "stream": stream, "n": 2}) for _ in range(2)]
    server.metric_becomes(4, RUNNING)
    if stream:
        for client in clients:
            received = b""
            while b"data: " not in received:
                more = client.recv(65536)
                assert more, received
                received += more
    for client in clients:
        client.close()
    server.metric_becomes(0, RUNNING)
    server.metric_becomes(aborted + 4, "vllm:request_success_total", finished_reason="abort")


def test_a_closed_socket_gives_up_its_place_in_the_queue(server: Server):
    clients = [server.raw({**LONG, "n": 4}), server.raw({**LONG, "n": 3})]
    server.metric_becomes(3, WAITING)
    clients[1].close()
    server.metric_becomes(0, WAITING)
    clients[0].close()
    server.metric_becomes(0, RUNNING)


def test_a_slow_reader_holds_up_nobody_and_gets_all(server: Server, greedy):
    body = {"prompt": PROMPT, "max_tokens": 200, "temperature": 0, "stream": True, "logprobs": 20}
    slow = server.raw(body, receive=4096)
    assert server.text(PROMPT, max_tokens=30) == greedy(PROMPT, 30)
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n"):
        part = slow.recv(8192)
        assert part
        data += part
        time.sleep(0.002)
    slow.close()
    assert data.count(b"data: ") > 20
    assert b"data: [DONE]" in data


def test_who_never_reads_is_cut_off(strict: Server, key):
    """An answer that no socket buffer holds, to a client that never reads: its slot is free again after the limit."""
    aborted = strict.metric("vllm:request_success_total", finished_reason="abort")
    body = {**LONG, "stream": True, "logprobs": 20}
    never = _with_key(strict, {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    strict.metric_becomes(1, RUNNING)
    strict.metric_becomes(0, RUNNING, seconds=60)
    assert strict.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1
    end = time.monotonic() + 20
    while any(c.status == "ESTABLISHED" for c in psutil.Process(strict.process.pid).net_connections()):
        assert time.monotonic() < end, "it is still connected"
        time.sleep(0.05)
    never.close()


def _with_key(strict: Server, body):
    """As ``Server.raw``, with the key, and a buffer so small that it fills."""
    import json
    import socket

    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", strict.port))
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer secret\r\n"
    )
    client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return client


@pytest.mark.parametrize("part", [b"", b"POST /v1/compl", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"])
def test_half_a_head_is_hung_up_on(strict: Server, part):
    import socket

    client = socket.create_connection(("127.0.0.1", strict.port), timeout=20)
    client.sendall(part)
    began = time.monotonic()
    with suppress(ConnectionResetError):
        assert client.recv(100) == b""
    assert 0.5 < time.monotonic() - began < 10
    client.close()


def test_half_a_body_is_a_408(strict: Server):
    import socket

    client = socket.create_connection(("127.0.0.1", strict.port), timeout=20)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    client.sendall(head + b"Authorization: Bearer secret\r\nContent-Length: 100\r\n\r\n{")
    assert b" 408 " in client.recv(1000).split(b"\r\n")[0]
    client.close()


def test_a_full_queue_is_a_429_before_anything_streams(strict: Server, key):
    body = {**LONG, "stream": True}
    clients = [_with_key(strict, body)]
    strict.metric_becomes(1, RUNNING)
    clients.append(_with_key(strict, body))
    strict.metric_becomes(1, WAITING)
    for stream in (True, False):
        got = strict.post("/v1/completions", {**body, "stream": stream}, headers=key)
        assert got.status_code == 429
        assert got.headers["retry-after"]
        assert got.json()["error"]["code"] == "over_capacity"
    for client in clients:
        client.close()
    strict.metric_becomes(0, RUNNING)
    got = strict.post("/v1/completions", {**LONG, "prompt": [PROMPT] * 3}, headers=key)
    assert got.status_code == 429, "three at once do not fit"
    strict.metric_becomes(0, RUNNING)
    assert strict.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, headers=key).status_code == 200


def test_the_key_is_asked_for(strict: Server, key):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/nothing"):
        for wrong in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "secret"},
            {"Authorization": "Bearer é"},
        ):
            headers = {k: v.encode() for k, v in wrong.items()}
            got = strict.post(path, {"prompt": "x"}, headers=headers)
            assert got.status_code == 401
            assert got.json()["error"]["code"] == "invalid_api_key"
    for path in ("/health", "/metrics", "/version", "/"):
        assert strict.get(path).status_code == 200
    assert strict.get("/v1/models", headers=key).status_code == 200
    assert strict.client(api_key="secret").models.list().data[0].id == "tiny-v4"


def test_a_model_without_a_template_says_so(strict: Server, key):
    body = {"messages": [{"role": "user", "content": "x"}]}
    error = strict.post("/v1/chat/completions", body, headers=key).json()["error"]
    assert (error["param"], error["code"]) == ("messages", "no_chat_template")
    assert "--chat-template" in error["message"]


def test_streams_run_side_by_side(server: Server, greedy):
    """Four streams at once, each with the text that it has alone."""
    from concurrent.futures import ThreadPoolExecutor

    prompts = [PROMPT, "class Stack:", "import os\n", "# -*- coding"]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda p: streamed(server, {"prompt": p, "max_tokens": 30, "temperature": 0}), prompts))
    texts = ["".join(c["choices"][0]["text"] for c in chunks) for chunks in answers]
    assert texts == [greedy(p, 30) for p in prompts]
