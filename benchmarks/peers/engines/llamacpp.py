"""llama.cpp: starts llama-server (``server`` in the options) on a free port of 127.0.0.1 and asks ``/completion``.

``model`` and ``draft`` are bf16 GGUF files. ``ngram`` is ``--spec-type ngram-simple``.
"""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.error import URLError

from wire import Answer, Generate, serve

CONTEXT = 1024
"""Tokens per slot."""


def command(options: dict, port: int) -> list[str]:
    """The server's command line."""
    threads, k, batch = str(options["threads"]), str(options["k"]), options["batch"]
    out = [options["server"], "-m", options["model"], "--host", "127.0.0.1", "--port", str(port)]
    out += ["-t", threads, "-tb", threads, "-c", str(CONTEXT * batch), "-np", str(batch), "--no-warmup"]
    out += ["--cache-ram", "0", "--no-webui"]
    if options["drafter"] == "draft":
        out += ["-md", options["draft"], "-td", threads, "-tbd", threads, "--spec-type", "draft-simple"]
        out += ["--spec-draft-n-max", k, "--spec-draft-n-min", k, "--spec-draft-p-min", "0"]
    elif options["drafter"] == "ngram":
        out += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", k]
    return out


def post(url: str, body: dict, timeout: float) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return json.load(reply)


def wait_until_ready(server: subprocess.Popen, url: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"llama-server ended with exit code {server.returncode}; its log says why")
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError(f"llama-server was not ready within {seconds:.0f} s")


def load(options: dict) -> tuple[Generate, dict[str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(command(options, port), stdout=sys.stderr, stderr=sys.stderr)
    atexit.register(server.kill)
    url = f"http://127.0.0.1:{port}"
    wait_until_ready(server, url, 120)
    pool = ThreadPoolExecutor(options["batch"])

    def one(prompt: list[int], new_tokens: int) -> dict:
        body = {"prompt": prompt, "n_predict": new_tokens, "temperature": 0, "top_k": 1, "samplers": ["top_k"]}
        body |= {"ignore_eos": True, "cache_prompt": False, "return_tokens": True}
        return post(url + "/completion", body, 600)

    def generate(prompts: list[list[int]], new_tokens: int) -> Answer:
        replies = list(pool.map(lambda p: one(p, new_tokens), prompts))
        timings = [r["timings"] for r in replies]
        tokens = sum(t["predicted_n"] - 1 for t in timings)  # the prefill gives the first
        steps = tokens - sum(t.get("draft_n_accepted", 0) for t in timings)
        return [r["tokens"] for r in replies], tokens / steps if steps else None

    return generate, {"llama-cpp-python": options["release"]}


if __name__ == "__main__":
    serve(load)
