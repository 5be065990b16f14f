"""The trace, the metrics and the log say what the outputs say."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import urllib.request
from collections import defaultdict
from itertools import pairwise

import pytest
from decoding import NEW, PROMPTS
from prometheus_client.parser import text_string_to_metric_families

from draftline.graph.errors import UsageError
from draftline.runtime import observe
from draftline.runtime.cli import main
from draftline.runtime.pipeline import RunOptions, open_pipeline


def events_of(path) -> dict[str, list[dict]]:
    """The trace's events by phase; every one has what its phase needs."""
    out = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        out[event["ph"]].append(event)
        assert {"name", "pid", "tid"} <= set(event)
        assert event["ph"] == "M" or event["ts"] > 0
    assert set(out) <= {"M", "X", "b", "e", "i"}
    return out


def run(pipeline):
    return pipeline.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)


def tracks(events) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}


def overlaps(a: dict, b: dict) -> bool:
    return a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("runtime", ["zmq", "inline"])
def test_a_trace_has_a_track_per_worker_and_a_span_per_segment(clean, tmp_path, runtime):
    path = tmp_path / "out.json"
    with open_pipeline("mtp-zmq.yaml", RunOptions(trace=path), runtime=runtime, max_num_seqs=2) as pipeline:
        outputs = run(pipeline)
        waves = pipeline.engine.runtime.totals.waves
    events = events_of(path)
    assert tracks(events) == {(0, 0): "driver", (0, 1): "worker 0 (cpu:0)", (0, 2): "worker 1 (cpu:1)"}
    steps = [e for e in events["X"] if e["tid"] == 0 and e["name"].startswith("step")]
    assert len(steps) == len({e["args"]["step"] for e in steps}) >= max(o.counts.steps for o in outputs)
    spans = [e for e in events["X"] if e["tid"] > 0]
    assert all({"step", "K", "requests"} <= set(e["args"]) for e in spans)
    verify = [e for e in spans if "verify" in e["name"]]
    assert len(verify) == waves  # decode only: prefill has no waves
    for e in verify:
        assert (e["tid"], e["args"]["chunk"]) == (2, 0)
        assert 1 <= len(e["args"]["requests"]) <= 2
    # Each request was in as many verify calls as it had steps.
    for o in outputs:
        assert sum(o.index in e["args"]["requests"] for e in verify) == o.counts.steps
    # Spans of a track do not cross, and all lie within the driver's.
    for tid in (1, 2):
        mine = sorted((e for e in spans if e["tid"] == tid), key=lambda e: e["ts"])
        assert mine
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(mine))
    for step in steps:
        inside = [e for e in spans if e["args"]["step"] == step["args"]["step"]]
        assert len(inside) >= 3
        for e in inside:
            assert step["ts"] <= e["ts"]
            assert e["ts"] + e["dur"] <= step["ts"] + step["dur"]
    # One async slice per request.
    begun, ended = ({e["id"]: e for e in events[ph]} for ph in "be")
    assert set(begun) == set(ended) == {0, 1, 2}
    assert all(begun[i]["ts"] < ended[i]["ts"] for i in begun)
    assert [begun[i]["args"]["tokens"] for i in range(3)] == [NEW] * 3


@pytest.mark.timeout(60)
def test_a_trace_shows_chunk_0_verified_while_drafts_are_made(clean, tmp_path):
    path = tmp_path / "out.json"
    with open_pipeline("mtp-zmq.yaml", RunOptions(trace=path), num_speculative_tokens=20) as pipeline:
        for _ in range(8):  # whether a rejection comes before the last draft is a race, on a busy machine a lost one
            run(pipeline)
            totals = pipeline.engine.runtime.totals
            if totals.cancelled:
                break
    events = events_of(path)
    spans = [e for e in events["X"] if e["tid"] > 0]
    drafts = [e for e in spans if "draft" in e["name"] and e["args"]["K"] == 20]
    first = [e for e in spans if "verify" in e["name"] and e["args"]["K"] == 20 and e["args"]["chunk"] == 0]
    assert any(overlaps(d, v) for d in drafts for v in first)
    cancelled = [e for e in events["i"] if e.get("cat") == "cancelled"]
    assert len(cancelled) == totals.cancelled > 0
    assert all(e["name"].startswith("cancelled draft.") and e["tid"] == 1 for e in cancelled)


@pytest.mark.timeout(60)
def test_a_trace_of_replicas_and_of_a_restart(clean, tmp_path):
    path = tmp_path / "out.json"
    wishes = {"replicas": 2, "max_num_seqs": 2, "runtime": "zmq"}
    with open_pipeline("mtp.yaml", RunOptions(trace=path), **wishes) as pipeline:
        run(pipeline)
        os.kill(pipeline.engines[0].runtime.pids[0], signal.SIGKILL)
        run(pipeline)
        pipeline.close()
        pipeline.close()
    events = events_of(path)
    assert {e["pid"] for e in events["X"]} == {0, 1}
    assert set(tracks(events).values()) == {"driver", "worker 0 (cpu:0)"}
    [lost] = [e for e in events["i"] if e["name"] == "WorkerLostError"]
    assert "SIGKILL" in lost["args"]["message"]
    after = [e for e in events["X"] if e["pid"] == 0 and e["tid"] == 1 and e["ts"] > lost["ts"]]
    assert any("verify" in e["name"] for e in after)  # the new worker's spans are there too


def scrape(pipeline) -> dict[tuple[str, tuple[str, ...]], float]:
    port = pipeline.observers.metrics.port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(v for k, v in sorted(sample.labels.items()) if k != "group")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.timeout(60)
@pytest.mark.parametrize("k", [3, 9])
def test_metrics_are_the_sums_of_the_outputs(clean, k):
    with open_pipeline("mtp-zmq.yaml", RunOptions(metrics_port=0), num_speculative_tokens=k) as pipeline:
        outputs, runtime = run(pipeline), pipeline.engine.runtime
        os.kill(runtime.pids[0], signal.SIGKILL)
        outputs += run(pipeline)
        seen, totals = scrape(pipeline), runtime.totals
        tile = pipeline.engine.sizes.tile

    def total(name: str) -> float:
        return sum(v for (n, _), v in seen.items() if n == f"draftline_{name}_total")

    assert total("tokens") == sum(len(o.token_ids) for o in outputs) == 6 * NEW
    assert total("prompt_tokens") == sum(len(o.prompt) for o in outputs)
    assert total("steps") >= 2 * max(o.counts.steps for o in outputs[:3]) - 1
    assert seen["draftline_requests_total", ("length",)] == 6
    for name, field in (("draft_tokens", "proposed"), ("accepted_tokens", "accepted")):
        for position in range(1, k + 1):
            wanted = sum((getattr(o.counts, field) + [0] * k)[position - 1] for o in outputs)
            assert seen.get((f"draftline_{name}_total", (str(position),)), 0) == wanted
    # Every row of every verify call stands for a request or for nobody.
    assert total("rows") + total("pad_rows") == tile * totals.waves
    assert total("waves") == totals.waves
    assert total("hops") == totals.hops > 0
    assert total("restarts") == 1
    assert total("refused_messages") == total("late_messages") == 0
    assert seen["draftline_captures", ()] == runtime.captures > 0
    assert seen["draftline_queue_wait_seconds_count", ()] == 6
    assert total("replayed_tokens") == 0  # nobody was under way when the worker died


def test_a_port_that_is_taken_and_a_trace_that_cannot_be_written(tmp_path):
    with open_pipeline("ar.yaml", RunOptions(metrics_port=0)) as pipeline:
        port = pipeline.observers.metrics.port
        with pytest.raises(UsageError, match=f"--metrics-port {port}: cannot listen on 127.0.0.1"):
            open_pipeline("ar.yaml", RunOptions(metrics_port=port))
    with pytest.raises(UsageError, match=r"--trace .*nowhere.*: cannot be written"):
        open_pipeline("ar.yaml", RunOptions(trace=tmp_path / "nowhere" / "t.json"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(60)
def test_flags(clean, tmp_path, capsys):
    path = tmp_path / "t.json"
    flags = ["--trace", str(path), "--metrics-port", "0", "--no-plan-cache"]
    assert main(["--graph", "mtp.yaml", "--runtime", "zmq", "--prompt", "x", "--max-new-tokens", "4", *flags]) == 0
    assert re.search(r"metrics on http://127.0.0.1:\d+/metrics", capsys.readouterr().err)
    assert events_of(path)["X"]
    assert os.listdir(tmp_path) == ["t.json"]
    assert main(["--prompt", "x", "--metrics-port", "70000", "--no-plan-cache"]) == 2
    assert "--metrics-port 70000: cannot listen" in capsys.readouterr().err


def test_acceptance_is_logged_when_a_request_ends_and_now_and_then(caplog, monkeypatch):
    with caplog.at_level(logging.DEBUG, "draftline"), open_pipeline("mtp.yaml") as pipeline:
        outputs = run(pipeline)
        assert [r.levelname for r in caplog.records] == ["INFO"] * 3  # none per step
        for output in outputs:
            [record] = [r for r in caplog.records if r.message.startswith(f"request {output.index}: length")]
            assert f"{NEW} tokens in {output.counts.steps} steps" in record.message
            assert f"acceptance per position [{output.counts.per_position(3)[0]:.2f}," in record.message
        caplog.clear()
        monkeypatch.setattr(observe, "PERIOD", 0.05)
        run(pipeline)
        periodic = [r for r in caplog.records if "tokens/s" in r.message]
        assert 0 < len(periodic) < max(o.counts.steps for o in outputs)
