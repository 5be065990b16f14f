"""pipeline-bench against a real server; its figures against hand-worked ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import SMALL, Server

from draftline.runtime.bench.cli import main
from draftline.runtime.bench.client import Sample
from draftline.runtime.bench.load import figures, percentile


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*SMALL) as one:
        yield one


def test_a_sweep_of_rates_and_depths(server, tmp_path, capsys):
    out, chart = tmp_path / "out.json", tmp_path / "out.png"
    flags = ["--requests", "6", "--max-tokens", "12", "--ignore-eos", "--depth", "0", "--depth", "3"]
    flags += ["--rate", "20", "--rate", "40", "--json", str(out), "--chart", str(chart)]
    assert main(["--url", server.url, *flags]) == 0
    runs = json.loads(out.read_text())["runs"]
    assert [(r["depth"], r["rate"]) for r in runs] == [(0, 20.0), (0, 40.0), (3, 20.0), (3, 40.0)]
    for run in runs:
        assert (run["requests"], run["failed"], run["tokens"]) == (6, 0, 72)
        assert 0 < run["ttft_ms"]["p50"] <= run["ttft_ms"]["p99"] <= run["e2e_ms"]["p99"]
        assert run["tokens_per_second"] == pytest.approx(72 / run["seconds"], rel=0.01)
    assert runs[0]["acceptance"] is None
    assert len(runs[2]["acceptance"]) == 3
    assert runs[2]["tokens_per_step"] == pytest.approx(1 + sum(runs[2]["acceptance"]), abs=0.01)
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.count("\n") == 5


def test_clients_and_a_file_of_prompts(server, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "class Stack:"}\n{"prompt": "import os"}\n')
    flags = ["--concurrency", "3", "--requests", "5", "--max-tokens", "4", "--prompts", str(prompts)]
    assert main(["--url", server.url, *flags, "--json", str(out)]) == 0
    (run,) = json.loads(out.read_text())["runs"]
    assert (run["concurrency"], run["requests"], run["tokens"]) == (3, 5, 20)


def test_failures_are_counted_and_told(server, capsys):
    assert main(["--url", server.url, "--requests", "2", "--max-tokens", "5000"]) == 1
    assert "HTTP 400" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--url", "http://127.0.0.1:1"], "127.0.0.1"),
        (["--rate", "1", "--concurrency", "1"], "one of them"),
        (["--rate", "0"], "--rate"),
        (["--depth", "-1"], "--depth"),
        (["--requests", "0"], "--requests"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--reqests", "1"], "'--requests'"),
    ],
)
def test_bad_input_is_one_line(flags, part, capsys):
    assert main(flags) == 2
    err = capsys.readouterr().err
    assert part in err
    assert err.count("\n") == 1


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 100))
def test_percentiles_are_numpys(values, percent):
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_figures_by_hand():
    samples = [
        Sample(10.0, 0.1, [0.02, 0.04], 0.2, 5, 8),
        Sample(10.5, 0.3, [0.03], 0.5, 5, 2),
        Sample(10.6, error="HTTP 429"),
    ]
    before = {"num_drafts": 4.0, "num_accepted_tokens": 2.0, "num_accepted_tokens_per_pos/0": 2.0}
    after = {"num_drafts": 14.0, "num_accepted_tokens": 11.0}
    after |= {"num_accepted_tokens_per_pos/0": 8.0, "num_accepted_tokens_per_pos/1": 3.0}
    found = figures(samples, before, after)
    assert (found["requests"], found["failed"], found["tokens"], found["seconds"]) == (3, 1, 10, 1.0)
    assert found["tokens_per_second"] == 10.0
    assert found["ttft_ms"] == {"p50": 200.0, "p90": 280.0, "p99": 298.0, "mean": 200.0}
    assert found["itl_ms"]["p50"] == 30.0
    assert found["acceptance"] == [0.6, 0.3]
    assert found["tokens_per_step"] == 1.9
    assert math.isnan(percentile([], 50))
    assert figures([], {}, {})["e2e_ms"]["p50"] is None
