"""The fault table: what happens to a worker, and that no token changes and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import psutil
import pytest
import traps
import zmq
from decoding import decode
from leftovers import leftovers

from draftline.graph.errors import StageError, WorkerLateError, WorkerLostError
from draftline.graph.yaml import load_graph
from draftline.runtime.pipeline import Pipeline, open_pipeline
from draftline.runtime.workers import messages as m


@pytest.fixture(scope="module")
def flags(base):
    """One flag file per place, for the traps."""
    where = base.parent / f"{base.name}-flags"
    where.mkdir()
    yield {place: where / place for place in ("draft", "verify", "commit", "prefill")}
    for path in where.iterdir():
        path.unlink()
    where.rmdir()


@pytest.fixture(scope="module")
def trapped(base, flags):
    """Two workers with a trap in every place; they live through the whole table."""
    graph = load_graph("mtp-zmq.yaml")
    for place in traps.PLACES:
        graph = traps.with_trap(graph, place, flag=str(flags[place]))
    prefill = traps.prefill_with_trap(flag=str(flags["prefill"]))
    with open_pipeline(graph, prefill=prefill, num_speculative_tokens=3, max_num_seqs=3, stage_timeout=4.0) as pipeline:
        yield pipeline
    assert leftovers(base) == []


class Errors:
    """An observer's ``failed``: keeps what it is told."""

    def __init__(self, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Exception] = []
        monkeypatch.setattr(pipeline.engine.observer, "failed", self.seen.append)


LOST = [
    ("kill", "prefill", r"worker 1 \(cpu:1, pid \d+\) was killed by SIGKILL in step \d+, at RUN s0"),
    ("kill", "draft", r"worker 0 \(cpu:0, pid \d+\) was killed by SIGKILL in step \d+, at RUN s0.draft-pad"),
    ("kill", "verify", r"worker 1 .* was killed by SIGKILL in step \d+, at RUN s1.verify"),
    ("kill", "commit", r"worker 1 .* was killed by SIGKILL in step \d+, at RUN s2.accept-commit"),
    ("abort", "verify", r"worker 1 .* was killed by SIGABRT"),
    ("exit", "draft", r"worker 0 .* ended with exit code 3"),
    ("oom", "verify", r"worker 1 .* ended with exit code 137 \(128 \+ SIGKILL: out of memory\?\)"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("harm", "place", "says"), LOST, ids=[f"{h}-{p}" for h, p, _ in LOST])
def test_a_worker_that_dies_costs_no_token(trapped, flags, truth, monkeypatch, harm, place, says):
    runtime, errors = trapped.engine.runtime, Errors(trapped, monkeypatch)
    restarts, before = runtime.totals.restarts, runtime.pids
    given = 0

    def listen(delta):
        tokens = delta.token_ids
        nonlocal given
        given += len(tokens)
        if place != "prefill" and given > 12 and given - len(tokens) <= 12:
            flags[place].write_text(harm)

    if place == "prefill":
        flags[place].write_text(harm)
    assert decode(trapped, listen) == truth
    assert not flags[place].exists()
    assert runtime.totals.restarts == restarts + 1
    [error] = errors.seen
    assert isinstance(error, WorkerLostError)
    assert re.search(says, str(error))
    assert not any(psutil.pid_exists(pid) for pid in before)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("place", "who"), [("draft", "worker 0"), ("verify", "worker 1")])
def test_a_worker_that_hangs_is_named_and_replaced(trapped, flags, truth, monkeypatch, place, who):
    errors = Errors(trapped, monkeypatch)
    flags[place].write_text("hang")
    assert decode(trapped) == truth
    [error] = errors.seen
    assert isinstance(error, WorkerLateError)
    says = r" .*pid \d+\) is late in step \d+: at RUN s\d\.\S+ for more than 4 s; its last heartbeat was [4-9]\.\d s"
    assert re.search(who + says, str(error))


@pytest.mark.timeout(60)
def test_a_stopped_worker_that_goes_on_later_is_not_heard(trapped, flags, truth, monkeypatch):
    """SIGSTOP, replaced after the deadline; its answer of the old epoch, sent late, is dropped and counted."""
    runtime, errors = trapped.engine.runtime, Errors(trapped, monkeypatch)
    late = runtime.totals.late
    flags["verify"].write_text("stop")
    assert decode(trapped) == truth
    assert [type(e) for e in errors.seen] == [WorkerLateError]
    # What it would have sent, had it come back: same key, right form, old epoch.
    _forge(runtime, epoch=runtime.epoch - 1)
    assert decode(trapped) == truth
    assert runtime.totals.late == late + 1


def _forge(runtime, epoch: int) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect(runtime._roster._inbox.get_string(zmq.LAST_ENDPOINT))
    socket.send_multipart(m.pack(runtime._roster._key, m.Done(epoch, runtime.step)))
    time.sleep(0.2)
    socket.close()
    context.term()


@pytest.mark.timeout(60)
def test_a_stop_that_ends_before_the_deadline_costs_nothing(trapped, flags, truth):
    runtime = trapped.engine.runtime
    restarts = runtime.totals.restarts
    flags["verify"].write_text("stop")
    timer = threading.Timer(1.5, lambda: [os.kill(pid, signal.SIGCONT) for pid in runtime.pids])
    timer.start()
    assert decode(trapped) == truth
    timer.join()
    assert runtime.totals.restarts == restarts


@pytest.mark.timeout(60)
def test_a_stage_that_raises_once_costs_no_restart(trapped, flags, truth, monkeypatch):
    runtime, errors = trapped.engine.runtime, Errors(trapped, monkeypatch)
    restarts, pids = runtime.totals.restarts, runtime.pids
    for place in ("draft", "verify", "commit", "prefill"):
        flags[place].write_text("raise")
        assert decode(trapped) == truth
    assert runtime.totals.restarts == restarts
    assert runtime.pids == pids
    assert [type(e) for e in errors.seen] == [StageError] * 4
    says = "stage 'draft.0' (traps:Draft) of plan 'mtp_zmq', K=3, wave 0, raised ZeroDivisionError"
    assert says in str(errors.seen[0])
    assert "traps.py" in "".join(errors.seen[0].__notes__)


@pytest.mark.timeout(60)
def test_a_killed_worker_between_two_runs_is_replaced(trapped, truth):
    os.kill(trapped.engine.runtime.pids[1], signal.SIGKILL)
    assert decode(trapped) == truth


def test_traps_change_no_token(trapped, truth):
    """The table's own control."""
    assert decode(trapped) == truth
