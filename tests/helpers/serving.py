"""A real ``pipeline-serve`` in a process of its own. Helper for tests; no tests in here."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

SMALL = ("--max-num-seqs", "4", "-K", "3", "--threads", "1")
START = 120.0


class Server:
    """Started and, unless told otherwise, ready. ``stop`` ends it as an operator would, with SIGTERM."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None, ready: bool = True) -> None:
        command = [sys.executable, "-m", "draftline.runtime.serve.cli", "--graph", "mtp.yaml", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, *flags],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = re.search(r"http://\S+", self.wait_for("listening on"))[0]  # type: ignore[index]
        if ready:
            self.wait_for("ready on")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self.lines.append("")
            self._changed.notify_all()

    def wait_for(self, part: str, seconds: float = START) -> str:
        """The first line on stderr with ``part``."""
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                found = [line for line in self.lines if part in line]
                if found:
                    return found[0]
                over = self.lines[-1:] == [""] or time.monotonic() > end
                assert not over, f"{part!r} never came: {''.join(self.lines)}"
                self._changed.wait(0.5)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            **{"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0, "timeout": 60, **options}
        )

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return httpx.post(self.url + path, timeout=60, verify=False, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, verify=False, **options)

    def text(self, prompt: Any, **options: Any) -> str:
        """One greedy completion."""
        got = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **options})
        assert got.status_code == 200, got.text
        return got.json()["choices"][0]["text"]

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics, summed over the labels that are not given."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            found = re.fullmatch(rf"{re.escape(name)}(?:{{(.*)}})? (\S+)", line)
            if found and all(f'{k}="{v}"' in (found[1] or "") for k, v in labels.items()):
                total += float(found[2])
        return total

    def metric_becomes(self, value: float, name: str, seconds: float = 20.0, **labels: str) -> None:
        end = time.monotonic() + seconds
        while (now := self.metric(name, **labels)) != value:
            assert time.monotonic() < end, f"{name} is {now}, not {value}"
            time.sleep(0.02)

    def raw(self, body: dict[str, Any], path: str = "/v1/completions", receive: int | None = None) -> socket.socket:
        """A request on a socket of its own, sent and not read."""
        data = json.dumps(body).encode()
        client = socket.socket()
        if receive is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        client.connect(("127.0.0.1", self.port))
        client.settimeout(60)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        client.sendall(head.encode() + data)
        return client

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Send a signal and give the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = 60.0) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reader.join(5)
            for pipe in (self.process.stderr, self.process.stdout):
                assert pipe is not None
                pipe.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def events(lines: Sequence[str] | Any) -> list[Any]:
    """The objects of a stream of server-sent events, which must end with [DONE]."""
    found = [line.removeprefix("data: ") for line in lines if line]
    assert found[-1] == "[DONE]", found[-1:]
    return [json.loads(one) for one in found[:-1]]


def streamed(server: Server, body: dict[str, Any], path: str = "/v1/completions") -> list[Any]:
    """The objects of a streamed answer."""
    with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=60) as got:
        assert got.status_code == 200, got.read()
        assert got.headers["content-type"].startswith("text/event-stream")
        return events(got.iter_lines())


def workers_of_server(server: Server) -> list[psutil.Process]:
    """Its worker processes that have not ended."""
    out = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it may end meanwhile
            if any("draftline.runtime.workers" in part for part in child.cmdline()):
                out.append(child)
    return out


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "# {{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}# assistant:{% endif %}"
)


def template_file(folder: Path) -> Path:
    """A chat template for a model that has none."""
    path = folder / "chat.jinja"
    path.write_text(TEMPLATE, "utf-8")
    return path
