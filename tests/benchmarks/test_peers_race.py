"""The race's driver with engines that are real processes and no models: order, pairing, faults, memory."""

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers import race
from benchmarks.peers.entrants import Entrant, Heat, entrants, heats
from benchmarks.peers.process import EngineError, EngineProcess, resident, tree
from benchmarks.peers.race import Task, interleave, whole_steps
from benchmarks.peers.stats import figures

FAKE = Path(__file__).parents[1] / "helpers" / "fake_engine.py"


@pytest.fixture
def start(tmp_path):
    running = []

    def one(name, **options):
        kept = {key: options.pop(key) for key in ("memory_limit", "start_timeout") if key in options}
        told = {"name": name, "pace": 0.0, "log": str(tmp_path / "log")} | options
        running.append(EngineProcess([sys.executable, FAKE], told, tmp_path / f"{name}.err", **kept))
        return running[-1]

    yield one
    for engine in running:
        engine.close()


def order(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_engines_take_turns_and_each_round_is_paired(start, tmp_path):
    engines = {"a": start("a", pace=0.002), "b": start("b", pace=0.006)}
    tasks = [Task("x", [[5]], 11, 3), Task("y", [[7], [8]], 6, 1)]
    failures = []
    records = interleave(engines, tasks, lambda *what: failures.append(what))
    assert not failures
    turns = [(name, new) for name, new in order(tmp_path) if new > 1]
    assert turns == [("a", 11), ("b", 11)] * 3 + [("a", 6), ("b", 6)]
    assert [(r["entrant"], r["task"], r["round"]) for r in records[:4]] == [
        ("a", 0, 0),
        ("b", 0, 0),
        ("a", 0, 1),
        ("b", 0, 1),
    ]
    assert records[0]["tokens"] == [list(range(6, 17))]
    assert records[-1]["tokens"] == [list(range(8, 14)), list(range(9, 15))]
    found = figures(records)
    assert found["a"].speeds.keys() == found["b"].speeds.keys() == {(0, 0), (0, 1), (0, 2), (1, 0)}
    assert all(r["seconds"] >= (0.002 if r["entrant"] == "a" else 0.006) * 11 for r in records[:6])
    assert found["a"].length == 2.0


def test_only_the_one_that_is_asked_runs(start):
    engine = start("a")
    assert state(engine) != "T"
    engine.stop()
    end = time.monotonic() + 10
    while state(engine) != "T" and time.monotonic() < end:
        time.sleep(0.01)
    assert state(engine) == "T"
    assert engine.ask([[1]], 2).tokens == [[2, 3]]


def state(engine):
    return Path(f"/proc/{engine._process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(("fault", "words"), [("later", "RuntimeError: out of luck"), ("die", "ended with code 7")])
def test_one_that_fails_leaves_the_race_to_the_others(start, fault, words):
    engines = {"bad": start("bad", fault=fault), "good": start("good")}
    failures = {}
    records = interleave(engines, [Task("x", [[5]], 4, 3)], failures.__setitem__)
    assert list(failures) == ["bad"]
    assert words in failures["bad"]
    assert "bad.err" in failures["bad"]
    assert [r["round"] for r in records if r["entrant"] == "good"] == [0, 1, 2]


def test_one_that_cannot_start_says_why(start, tmp_path):
    with pytest.raises(EngineError, match=r"ValueError: no such model; see .*a\.err"):
        start("a", fault="start")
    assert "Traceback" in (tmp_path / "a.err").read_text()


def test_silence_has_an_end(start):
    engine = start("a", fault="silent")
    for _ in range(2):
        engine.ask([[1]], 1)
    with pytest.raises(EngineError, match="no answer within 1 s"):
        engine.ask([[1]], 1, timeout=1)


def test_memory_is_measured_and_bounded(start):
    small, large = start("small"), start("large", fault="hungry")
    for engine in (small, large):
        engine.ask([[1]], 1)
    assert large.peak - small.peak > 300 * 2**20

    def run_out():
        limited = start("limited", fault="hungry", memory_limit=200 * 2**20)
        for _ in range(1000):
            limited.ask([[1]], 1)
            time.sleep(0.01)

    with pytest.raises(EngineError, match=r"killed above 0\.2 GiB of memory"):
        run_out()


def test_a_closed_engine_leaves_no_process(start):
    engine = start("a")
    pid = engine._process.pid
    assert tree(pid) == [pid]
    assert resident([pid]) > 0
    engine.close()
    assert not Path(f"/proc/{pid}").exists()


def test_new_tokens_are_whole_steps():
    for k in (0, 1, 2, 4, 7, 8):
        after_first = whole_steps(k, 64) - 1
        assert after_first % (k + 1) == 0
        assert 64 <= after_first < 64 + k + 1


def test_heats_cover_the_request():
    known = list(heats("known", ["135m", "0.5b"], [0, 8], [1, 8]))
    assert [h.name for h in known] == ["known-135m-k0-b1", "known-135m-k8-b1", "known-0.5b-k0-b1", "known-0.5b-k8-b1"]
    real = list(heats("real", ["smollm2"], [0, 8], [1, 8]))
    assert [(h.k, h.batch) for h in real] == [(0, 1), (None, 1), (0, 8), (None, 8)]
    names = [e.name for e in entrants(real[-1], ["draftline", "openvino", "hf"], 3, 4)]
    assert names == ["draftline-mtp", "draftline-ngram", "openvino-ngram"]


def test_a_second_race_adds_only_what_is_missing(monkeypatch, tmp_path, capsys):
    def launch(work, heat, entrant):
        options = {"name": entrant.name, "pace": 0.0, "log": str(tmp_path / "log")}
        return [sys.executable, FAKE], options | ({"fault": "start"} if entrant.name == "broken" else {})

    takers = [Entrant("draftline", "draftline", "none", 0)]
    monkeypatch.setattr(race, "launch", launch)
    monkeypatch.setattr(race, "heats", lambda *_: [Heat("known", "135m", 0)])
    monkeypatch.setattr(race, "entrants", lambda *_: takers)
    monkeypatch.setattr(race, "read_bandwidth", lambda threads: 4e10)
    command = ["known", "--rounds", "2", "--new", "3", "--work", str(tmp_path), "--out", str(tmp_path / "r.json")]
    race.main(command)
    takers += [Entrant("hf", "hf", "none", 0), Entrant("broken", "vllm", "none", 0)]
    race.main(command)
    heat = json.loads((tmp_path / "r.json").read_text())["heats"]["known-135m-k0-b1"]
    assert {n: "error" in e for n, e in heat["entrants"].items()} == {"draftline": False, "hf": False, "broken": True}
    assert [r["entrant"] for r in heat["records"]] == ["draftline"] * 2 + ["hf"] * 2
    assert [name for name, new in order(tmp_path) if new == 4] == ["draftline"] * 2 + ["hf"] * 2
    assert "broken: ValueError: no such model" in capsys.readouterr().out
