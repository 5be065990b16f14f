"""64 clients at once while workers are killed: every request ends with its right tokens or a typed error.

``DRAFTLINE_LOAD_SECONDS=300 pytest tests/serve/test_load.py`` runs for five minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from typing import Any

import httpx
from serving import Server, workers_of_server

SECONDS = float(os.environ.get("DRAFTLINE_LOAD_SECONDS", "12"))
CLIENTS = 64
KILL_EVERY = 3.0
PROMPTS = ["def read_lines(path):", "class Stack:", "import os\n", "# -*- coding", "for i in range(", "x = ["]
LENGTHS = (1, 7, 16, 32)
STOP = "self"


class Tally:
    """What became of all requests, and what each should have given."""

    def __init__(self, want: dict[tuple[str, int], str]) -> None:
        self.want, self.seen, self.wrong = want, Counter[str](), list[Any]()

    def judge(self, prompt: str, tokens: int, text: str, stop: bool) -> None:
        whole = self.want[prompt, tokens]
        want = whole[: whole.index(STOP)] if stop and STOP in whole else whole
        self.seen["right" if text == want else "wrong"] += 1
        if text != want:
            self.wrong.append((prompt, tokens, stop, text, want))


async def one(client: httpx.AsyncClient, rng: random.Random, tally: Tally) -> None:
    """A request of some kind: whole or streamed, some with a stop string, some given up in the middle."""
    prompt, tokens, stop = rng.choice(PROMPTS), rng.choice(LENGTHS), rng.random() < 0.25
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
    body |= {"num_speculative_tokens": rng.choice([0, 1, 3, None])} | ({"stop": STOP} if stop else {})
    if rng.random() < 0.5:
        got = await client.post("/v1/completions", json=body)
        if got.status_code == 200:
            tally.judge(prompt, tokens, got.json()["choices"][0]["text"], stop)
        else:
            assert got.status_code in (429, 503), got.text
            assert got.json()["error"]["code"] in ("over_capacity", "workers_lost"), got.text
            tally.seen[got.json()["error"]["code"]] += 1
        return
    leave = rng.random() < 0.2
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as got:
        if got.status_code != 200:
            assert got.status_code in (429, 503)
            tally.seen["refused"] += 1
            return
        text = ""
        async for line in got.aiter_lines():
            if line == "data: [DONE]":
                tally.judge(prompt, tokens, text, stop)
            elif line:
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                if leave:
                    tally.seen["left"] += 1
                    return


async def load(server: Server, tally: Tally) -> int:
    """All clients until the time is over; how many workers were killed."""
    end, killed = time.monotonic() + SECONDS, 0
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS)

    async def client(n: int, http: httpx.AsyncClient) -> None:
        rng = random.Random(n)
        while time.monotonic() < end:
            await one(http, rng, tally)

    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        clients = [asyncio.create_task(client(n, http)) for n in range(CLIENTS)]
        while time.monotonic() < end:
            await asyncio.sleep(min(KILL_EVERY, max(0.0, end - time.monotonic())))
            for worker in workers_of_server(server)[:1] if time.monotonic() < end else []:
                worker.kill()
                killed += 1
        await asyncio.wait_for(asyncio.gather(*clients), 120)
    return killed


def test_every_request_ends_while_workers_die(plain):
    outputs = plain.generate(PROMPTS, max_new_tokens=max(LENGTHS))
    want = {
        (prompt, n): plain.text.decode(output.token_ids[:n])
        for prompt, output in zip(PROMPTS, outputs, strict=True)
        for n in LENGTHS
    }
    tally = Tally(want)
    flags = ("--runtime", "zmq", "--max-num-seqs", "8", "-K", "3", "--threads", "1", "--max-restarts", "1000")
    with Server(*flags) as server:
        killed = asyncio.run(load(server, tally))
        server.metric_becomes(0, "vllm:num_requests_running")
        server.metric_becomes(0, "vllm:num_requests_waiting")
        restarts = server.metric("draftline_restarts_total")
        assert server.get("/health").status_code == 200
    print(dict(tally.seen), f"{killed} workers killed, {restarts:g} restarts")
    assert not tally.wrong, tally.wrong[:3]
    asked = sum(tally.seen.values())
    assert asked >= CLIENTS, "each sends one at least, and all have ended"
    assert tally.seen["right"] > asked / 2
    assert tally.seen["left"]
    assert killed >= 2
    assert restarts >= killed - 1
