"""Two thousand steps while workers are killed at random: every request gets the tokens of K=0, and nothing grows."""

from __future__ import annotations

import os
import random
import signal
import threading

import psutil
import pytest
from decoding import decode

from draftline.runtime.pipeline import open_pipeline

STEPS, NEW, KILLS = 2000, 250, 12


def held() -> dict[str, int]:
    """What this process holds: descriptors, mappings of shared memory, resident bytes, child processes."""
    me = psutil.Process()
    with open("/proc/self/maps") as maps:
        shared = sum("draftline-arena" in line for line in maps)
    return {"fds": me.num_fds(), "shared": shared, "threads": me.num_threads(), "children": len(me.children())}


@pytest.mark.timeout(300)
def test_two_thousand_steps_with_random_kills(clean):
    with open_pipeline("ar.yaml", max_num_seqs=3) as pipeline:
        truth = decode(pipeline, new=NEW)
    chance = random.Random(7)
    due = sorted(chance.sample(range(100, STEPS - 100), KILLS))
    with open_pipeline("mtp-zmq.yaml", max_num_seqs=2, num_speculative_tokens=3, max_restarts=3) as pipeline:
        runtime = pipeline.engine.runtime
        timers: list[threading.Timer] = []

        def listen(delta):
            """Every now and then, kill a worker a random part of a step from now."""
            if due and runtime.totals.steps >= due[0]:
                due.pop(0)
                pid = chance.choice(runtime.pids)
                timers.append(threading.Timer(chance.uniform(0, 0.02), os.kill, (pid, signal.SIGKILL)))
                timers[-1].start()

        assert decode(pipeline, listen, NEW) == truth
        first, resident, rounds = held(), psutil.Process().memory_info().rss, 1
        while runtime.totals.steps < STEPS:
            assert decode(pipeline, listen, NEW) == truth
            rounds += 1
        for timer in timers:
            timer.join()
        assert decode(pipeline, new=4) == [tokens[:4] for tokens in truth]
        assert due == []
        assert KILLS // 2 <= runtime.totals.restarts <= KILLS  # one that dies while it restarts is one restart
        assert rounds >= 4
        assert held() == first
        assert psutil.Process().memory_info().rss - resident < 32 * 2**20
        assert pipeline.engine.num_free_pages == pipeline.engine.sizes.geometry().num_pages
