"""How worker processes begin and end: who is missing, who is killed, what an interrupt does, what is left behind."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import starts
from decoding import NEW, PROMPTS, decode
from leftovers import alive, workers_of

from draftline.graph.errors import CapacityError, UsageError, WorkerStartError
from draftline.graph.yaml import load_graph
from draftline.runtime.cli import main
from draftline.runtime.pipeline import open_pipeline
from draftline.runtime.workers import roster
from draftline.runtime.workers.group import WorkerGroup
from draftline.stages.models.registry import PACKAGED

HELPERS = Path(__file__).parent.parent / "helpers"


def three(stage: str = "", **options):
    """mtp-zmq.yaml with accept and commit on a device of their own; ``stage`` in accept's place."""
    graph = load_graph("mtp-zmq.yaml")
    graph = replace(
        graph, placement=(("draft", "cpu:0"), ("verify", "cpu:1"), ("accept", "cpu:2"), ("commit", "cpu:2"))
    )
    return starts.with_stage(graph, "accept", stage, **options) if stage else graph


# -- start -------------------------------------------------------------------------------------------------------

FAILS = [
    ("raise", r"worker 2 \(cpu:2, pid \d+\) ended with exit code 1 before it was ready; it was binding the plans\n"),
    ("exit", r"worker 2 \(cpu:2, pid \d+\) ended with exit code 1 before it was ready; it was binding the plans\n"),
    ("hang", r"worker 2 \(cpu:2, pid \d+\) not ready after 15 s\nworker 2 \(cpu:2, pid \d+\) was binding the plans\n"),
]
WORDS = {"raise": "ZeroDivisionError", "exit": "no licence", "hang": "waiting for a licence"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("harm", "says"), FAILS, ids=[harm for harm, _ in FAILS])
def test_one_of_three_that_cannot_start_is_named_with_its_last_words(clean, harm, says):
    with pytest.raises(WorkerStartError, match=says) as error:
        open_pipeline(three("starts:Accept", harm=harm), start_timeout=15.0 if harm == "hang" else 60.0)
    assert WORDS[harm] in str(error.value).split("its last words:")[1]
    assert "worker 0" not in str(error.value)
    assert "worker 1" not in str(error.value)


@pytest.mark.timeout(60)
def test_a_worker_killed_when_it_is_ready_is_named(clean, monkeypatch):
    _kill_when_ready(monkeypatch, times=1)
    with pytest.raises(WorkerStartError, match=r"worker \d \(cpu:\d, pid \d+\) was killed by SIGKILL"):
        open_pipeline("mtp-zmq.yaml")


def _kill_when_ready(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    killed: list[int] = []
    epochs: set[int] = set()
    ready = WorkerGroup._ready

    def kill(self, message):
        if len(killed) < times and self.epoch not in epochs:  # both workers may say so before the first is missed
            epochs.add(self.epoch)
            killed.append(message.pid)
            os.kill(message.pid, signal.SIGKILL)
            return  # it said so, and is gone before anybody else did
        ready(self, message)

    monkeypatch.setattr(WorkerGroup, "_ready", kill)
    return killed


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["no process", "no boot record"])
def test_a_second_worker_that_the_system_does_not_start_leaves_no_first_one(clean, monkeypatch, what):
    fds, calls = psutil.Process().num_fds(), 0
    popen, send = subprocess.Popen, roster.send

    def second(real, error):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls == 2:
                raise error
            return real(*args, **options)

        return call

    if what == "no process":
        monkeypatch.setattr(subprocess, "Popen", second(popen, OSError(12, "Cannot allocate memory")))
        says = r"worker 1 \(cpu:1\) cannot be started: .*Cannot allocate memory"
    else:
        monkeypatch.setattr(roster, "send", second(send, WorkerStartError("worker 1 did not read its boot record")))
        says = "did not read its boot record"
    with pytest.raises(WorkerStartError, match=says) as error:
        open_pipeline("mtp-zmq.yaml")
    monkeypatch.undo()
    del error
    gc.collect()
    assert calls == 2
    assert psutil.Process().num_fds() <= fds + (what == "no boot record")  # the pipe that the stand-in did not close


@pytest.mark.timeout(60)
def test_a_restart_that_fails_is_tried_again(clean, truth, monkeypatch):
    with open_pipeline("mtp-zmq.yaml", max_num_seqs=3) as pipeline:
        killed = _kill_when_ready(monkeypatch, times=2)
        os.kill(pipeline.engine.runtime.pids[0], signal.SIGKILL)
        assert decode(pipeline) == truth
        assert len(killed) == 2
        assert pipeline.engine.runtime.totals.restarts == 3


@pytest.mark.timeout(60)
def test_workers_are_started_from_the_main_thread_only(clean):
    caught: list[BaseException] = []

    def start():
        try:
            open_pipeline("mtp-zmq.yaml")
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert isinstance(caught[0], UsageError)
    assert "main thread" in str(caught[0])


# -- end ---------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_closing_twice_is_closing_once(clean):
    with open_pipeline("mtp-zmq.yaml", max_num_seqs=3) as pipeline:
        runtime = pipeline.engine.runtime
        pids, directory = runtime.pids, runtime.directory
        assert all(psutil.pid_exists(pid) for pid in pids)
        assert os.stat(directory).st_mode & 0o777 == 0o700
        began = time.monotonic()
        pipeline.close()
        assert time.monotonic() - began < 2
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert not os.path.exists(directory)
        pipeline.close()
        runtime.close()


@pytest.mark.timeout(60)
def test_a_forgotten_pipeline_ends_its_workers(clean):
    pipeline = open_pipeline("mtp-zmq.yaml")
    pids = pipeline.engine.runtime.pids
    del pipeline
    gc.collect()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def script(base: Path, body: str) -> subprocess.Popen[str]:
    """A driver in a process of its own, which prints a line once it decodes."""
    code = f"""
        import sys
        sys.path.insert(0, {str(HELPERS)!r})
        import starts
        from draftline.graph.yaml import load_graph
        from draftline.runtime.pipeline import open_pipeline
        graph = load_graph("mtp-zmq.yaml")
        prompts = {PROMPTS!r}
    """
    env = {**os.environ, "TMPDIR": str(base)}
    code = textwrap.dedent(code) + textwrap.dedent(body)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)


DECODES = """
    pipeline = open_pipeline(graph, max_num_seqs=3)
    print(pipeline.engine.runtime.directory, flush=True)
    listen = lambda delta: print("tokens", flush=True)
    pipeline.generate(prompts, listen, max_new_tokens=900, ignore_eos=True)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("send", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_workers_do_not_outlive_their_driver(clean, send):
    driver = script(clean, DECODES)
    assert driver.stdout is not None
    directory = driver.stdout.readline().strip()
    driver.stdout.readline()
    workers = workers_of(directory)
    assert len(workers) == 2
    driver.send_signal(send)
    driver.wait()
    assert alive(workers, seconds=2) == []
    assert not os.path.exists(directory)
    driver.stdout.close()


def held_by(flag: Path) -> list[Path]:
    """One file for each worker that hangs in ``starts.Held``."""
    return list(flag.parent.glob(f"{flag.name}-*"))


@pytest.mark.timeout(60)
def test_a_worker_that_holds_the_interpreter_does_not_outlive_its_driver(clean):
    """The thread that watches the driver cannot run while a stage holds the lock; the kernel's signal can."""
    flag = clean.parent / f"{clean.name}-held"
    body = f"graph = starts.with_stage(graph, 'verify', 'starts:Held', flag={str(flag)!r})\n" + textwrap.dedent(DECODES)
    driver = script(clean, body)
    assert driver.stdout is not None
    directory = driver.stdout.readline().strip()
    while not held_by(flag):
        time.sleep(0.05)
    held_by(flag)[0].unlink()
    workers = workers_of(directory)
    assert len(workers) == 2
    driver.kill()
    driver.wait()
    assert alive(workers, seconds=2) == []
    driver.stdout.close()
    # The other worker has removed the directory.
    assert not os.path.exists(directory)


@pytest.mark.timeout(60)
def test_a_script_that_forgets_to_close_leaves_nothing(clean):
    driver = script(clean, "pipeline = open_pipeline(graph)\nprint(pipeline.engine.runtime.directory, flush=True)\n")
    assert driver.stdout is not None
    directory = driver.stdout.readline().strip()
    assert driver.wait(timeout=20) == 0
    assert workers_of(directory) == []
    driver.stdout.close()


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("when", "send", "replicas"),
    [
        ("while workers start", signal.SIGINT, 1),
        ("while it decodes", signal.SIGINT, 1),
        ("while a stage hangs", signal.SIGINT, 1),
        ("while a stage hangs", signal.SIGINT, 2),
        ("while workers start", signal.SIGTERM, 1),
        ("while it decodes", signal.SIGTERM, 1),
    ],
)
def test_an_interrupt_ends_soon_and_clean(clean, tmp_path, when, send, replicas):
    flag, graph = tmp_path / "held", tmp_path / "g.yaml"
    text = load_text("mtp-zmq.yaml")
    if when == "while a stage hangs":  # in C code, so that not even SIGTERM is heard
        text = text.replace("stage: verify\n", f"stage: starts:Held\n          options: {{flag: {flag}}}\n")
    graph.write_text(text)
    command = [str(Path(sys.executable).with_name("pipeline-run")), "--graph", str(graph), "--prompt", "def f():"]
    more = ["--replicas", str(replicas), "--prompt", "class Stack:", "--trace", str(tmp_path / "t.json")]
    process = subprocess.Popen(
        [*command, "--stream", "--max-new-tokens", "900", "--ignore-eos", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HELPERS,
        env={**os.environ, "TMPDIR": str(clean), "XDG_CACHE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    if when == "while it decodes":
        process.stdout.read(40)
    while not (len(held_by(flag)) == replicas if when == "while a stage hangs" else workers_of(str(clean))):
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(send)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 2
    assert process.returncode == 128 + send, err
    said = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[send]
    assert err.splitlines()[-1] == f"pipeline-run: {said}"
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] or when != "while it decodes"
    assert "Traceback" not in err
    assert workers_of(str(clean)) == []
    assert os.listdir(clean) == []


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_ctrl_c_in_a_terminal_leaves_it_as_it_was(clean):
    """The terminal sends the interrupt to its whole foreground group; the cursor that the progress bar hid is back."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TMPDIR"] = str(clean)
        command = [sys.executable, "-m", "draftline.runtime.cli", "--graph", "mtp-zmq.yaml", "--prompt", "def f():"]
        os.execv(sys.executable, [*command, "--max-new-tokens", "900", "--ignore-eos"])
    said = b""
    while b"decoding" not in said:  # the bar is there
        said += os.read(terminal, 4096)
    time.sleep(0.5)
    began = time.monotonic()
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while more := os.read(terminal, 4096):
            said += more
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert time.monotonic() - began < 2
    assert os.waitstatus_to_exitcode(status) == 130
    assert said.count(b"\x1b[?25l") == said.count(b"\x1b[?25h") == 1
    assert said.rstrip().endswith(b"pipeline-run: interrupted")
    assert b"Traceback" not in said


# -- more than fits ----------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_more_than_the_engine_takes_is_refused_and_costs_nothing(clean, truth):
    with open_pipeline("mtp-zmq.yaml", max_num_seqs=2, max_waiting=1) as pipeline:
        engine = pipeline.engine
        requests = [pipeline.request(p, NEW, ignore_eos=True) for p in PROMPTS]
        for i, request in enumerate(requests):
            engine.add(i, request)
        with pytest.raises(CapacityError, match=r"0 requests run and 3 wait.*max_num_seqs=2, max_waiting=1.*try again"):
            engine.add(3, requests[0])
        bound, _ = _scheduled(engine)
        first = engine.runtime.start(bound)
        with pytest.raises(CapacityError, match="one step at a time"):
            engine.runtime.start(bound)
        first.wait()
        outputs = []
        while engine.num_unfinished:
            outputs += engine.step()
        assert [o.token_ids for o in sorted(outputs, key=lambda o: o.index)] == truth


def _scheduled(engine):
    engine.admit()
    return engine.prepare_step()


@pytest.mark.timeout(60)
def test_a_command_whose_workers_cannot_start_says_so_and_exits_1(clean, capsys, tmp_path):
    graph = tmp_path / "g.yaml"
    graph.write_text(load_text("mtp-zmq.yaml").replace("accept.greedy", "starts:Accept"))
    code = main(["--graph", str(graph), "--prompt", "x", "--no-plan-cache"])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert re.search(
        r"pipeline-run: error: worker 1 \(cpu:1, pid \d+\) ended with exit code 1 before it was ready", err
    )


@pytest.mark.timeout(60)
def test_a_stage_that_refuses_its_options_is_read_without_a_traceback(clean):
    graph = three("starts:Accept", harm="refuse")
    with pytest.raises(WorkerStartError, match=r"worker 2 .* ended with exit code 2 before it was ready") as error:
        open_pipeline(graph)
    assert str(error.value).endswith("its last words:\n    GraphError: accept: temperature is 2; 0 is wanted")


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_broken_weights_are_one_line_before_any_worker_starts(clean, tmp_path, capsys, damage):
    model = Path(shutil.copytree(PACKAGED / "tiny-v4", tmp_path / "model"))
    weights = model / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:5_000_000])
    else:
        weights.unlink()
    code = main(["--graph", "mtp-zmq.yaml", "--model", str(model), "--prompt", "x", "--no-plan-cache"])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert {"truncated": "truncated or corrupt safetensors file", "missing": "holds neither"}[damage] in err


@pytest.mark.parametrize("runtime", ["inline", "zmq"])
def test_sizes_that_do_not_fit_are_refused_before_anything_is_compiled(clean, capsys, runtime):
    began = time.monotonic()
    code = main(["--runtime", runtime, "--max-num-seqs", "20000000", "--prompt", "x", "--no-plan-cache"])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "do not fit into memory" in err
    assert time.monotonic() - began < 20


def load_text(name: str) -> str:
    from importlib.resources import files

    return files("draftline.graph.examples").joinpath(name).read_text("utf-8")
