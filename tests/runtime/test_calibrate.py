"""Calibration: real measurements cover every price that a plan asks for; they are stored, found again, and printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftline.compiler.costs import DISPATCH, HOP
from draftline.compiler.explain import explain
from draftline.graph.errors import UsageError
from draftline.runtime import calibrate, calibration
from draftline.runtime.cli import main
from draftline.runtime.pipeline import calibrated, prepare

RECORDED = Path(__file__).parent.parent / "golden" / "costs" / "smollm2-bf16.json"
"""A calibration of SmolLM2 in bf16 with its packaged head, two cores with AVX-512."""


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "ROUNDS", 2)
    monkeypatch.setattr(calibrate, "LEAST", 1)
    return tmp_path / "draftline" / "costs"


@pytest.mark.parametrize(("graph", "k"), [("mtp-zmq.yaml", 2), ("ngram.yaml", 1), ("ar.yaml", 0)])
def test_every_price_of_a_plan_is_measured(cache, graph, k):
    wishes = {"num_speculative_tokens": k, "max_num_seqs": 2, "max_model_len": 256}
    before = prepare(graph, **wishes)
    record = calibrated(before).costs.record
    assert [(s.depth, s.requests) for s in record.steps] == [(d, n) for n in (1, 2) for d in range(k + 1)]
    assert all(s.micros > 0 for s in record.steps)
    after = prepare(graph, **wishes)  # finds what was stored
    assert after.costs.record == record
    plan, _ = after.plan()
    for segment in plan.segments:
        for run in segment.runs:
            width = 8 if run.width else 2
            entry = after.costs.table.entry(run.stage, width)
            assert (entry.source, entry.width) == ("measured", width), run.op
            assert entry.micros > 0
    assert after.costs.table.entry(DISPATCH, 8).source == after.costs.table.entry(HOP, 8).source == "measured"
    assert after.costs.table.micros(HOP, 8) > 0
    # verify is a whole model, accept a few operations on integers
    assert after.costs.table.micros("verify", 8) > 5 * after.costs.table.micros("accept.greedy", 8)
    assert plan.key != before.plan()[0].key
    text = explain(plan)
    assert "measured" in text
    assert {e.source for e in plan.cost_table if e.stage == "verify"} == {"measured"}


def test_what_was_measured_depends_on(cache):
    """A run with other facts does not find it; other numbers of requests take the next larger record."""
    of = {"max_model_len": 256, "num_speculative_tokens": 0, "max_num_seqs": 2}
    record = calibrated(prepare("ar.yaml", **of)).costs.record
    assert prepare("ar.yaml", **{**of, "max_num_seqs": 1}).costs.record == record
    for other in ({"dtype": "bf16"}, {"tile": 4}, {"max_model_len": 128}, {"threads": 2}, {"runtime": "zmq"}):
        assert prepare("ar.yaml", **{**of, **other}).costs.record is None, other
    assert prepare("ngram.yaml", **of).costs.record is None


def test_damaged_files(cache):
    of = {"max_model_len": 256, "num_speculative_tokens": 0, "max_num_seqs": 1}
    path = calibrated(prepare("ar.yaml", **of)).costs.path
    assert path is not None
    assert path.parent == cache
    good = path.read_text()
    entry = json.loads(good)["records"][0]["entries"][0]
    for damage in (
        good[: len(good) // 2],
        "[]",
        good.replace('"format": 1', '"format": 9'),
        good.replace(f'"micros": {entry["micros"]}', '"micros": -1.0'),
        good.replace('"records"', '"record"'),
    ):
        path.write_text(damage)
        assert prepare("ar.yaml", **of).costs.record is None  # as if nothing had been measured
        with pytest.raises(UsageError, match=str(path)):
            prepare("ar.yaml", costs=str(path), **of)
    path.write_text(good)
    assert prepare("ar.yaml", **of).costs.record is not None
    with pytest.raises(UsageError, match="cannot be read"):
        prepare("ar.yaml", costs="nowhere.json", **of)


def test_a_cache_that_cannot_be_written(tmp_path, cache, monkeypatch):
    (tmp_path / "draftline").mkdir()
    (tmp_path / "draftline" / "costs").write_text("a file where a folder is wanted")
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        calibrated(prepare("ar.yaml", max_model_len=128, max_num_seqs=1))


@pytest.mark.parametrize(
    ("flags", "rc"),
    [
        (["--graph", "ar.yaml", "--max-model-len", "3"], 2),
        (["--graph", "ar.yaml", "--max-model-len", "4"], 0),
        (["--graph", "mtp.yaml", "--max-model-len", "3"], 2),
        (["--graph", "mtp.yaml", "--max-model-len", "17"], 2),
        (["--graph", "mtp.yaml", "--max-model-len", "18"], 0),
    ],
)
def test_contexts_that_are_too_short_to_measure_in(cache, capsys, flags, rc):
    """At K=7 two steps take 18 tokens. Below that there is one line, and nothing is stored; from there on every depth
    has a cost."""
    assert main([*flags, "--calibrate", "--max-num-seqs", "1", "--no-plan-cache"]) == rc
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    if rc:
        assert "at least" in err[0]
        assert not list(cache.glob("*.json"))
    else:
        [path] = cache.glob("*.json")
        [record] = calibration.read(path).records
        assert [s.depth for s in record.steps] == list(range(record.k_max + 1))


def test_the_command(cache, capsys):
    args = ["--graph", "ar.yaml", "--max-model-len", "128", "--no-plan-cache"]
    assert main([*args, "--calibrate"]) == 0
    out = capsys.readouterr()
    assert "step K=0" in out.out
    assert "verify" in out.out
    assert "stored in" in out.err
    [path] = cache.glob("*.json")
    assert [r.max_num_seqs for r in calibration.read(path).records] == [1, 8]
    assert main([*args, "--explain"]) == 0
    assert "measured" in capsys.readouterr().out
    assert main([*args, "--explain", "--costs", "assumed"]) == 0
    assert "measured" not in capsys.readouterr().out
    assert main([*args, "--calibrate", "--costs", "assumed"]) == 2


def test_plans_of_a_recorded_table_are_golden(golden):
    """Layouts and prices as the measured costs of a real model give them."""
    lines = []
    for tile in (8, 16):
        for k in (0, 1, 2, 3, 4, 7, 9):
            wishes = {"tile": tile, "max_num_seqs": 8, "num_speculative_tokens": k}
            layout = prepare("mtp.yaml", costs=str(RECORDED), **wishes).plan()[0].layout
            rivals = ", ".join(f"{r.layout} {r.cost:.0f}" for r in layout.rivals)
            lines.append(f"T={tile} K={k}: {layout.chosen} {layout.cost:.0f} us; {rivals}")
    golden("compiler/layouts-measured.txt", "\n".join(lines) + "\n")


def test_an_explained_plan_of_a_recorded_table_is_golden(golden):
    plan, _ = prepare("mtp.yaml", costs=str(RECORDED), num_speculative_tokens=3, max_num_seqs=1).plan()
    golden("compiler/costs-measured.txt", explain(plan)[explain(plan).index("\ncosts (") + 1 :])
