"""Figures, tables and the chart from a small race that is written down by hand."""

import json

import pytest

from benchmarks.peers import report, tables
from benchmarks.peers.stats import agreement, best_peer, efficiency, figures, ratio

PLAIN = {"drafter": "none", "k": 0}


def record(entrant, at, first, seconds, *, task=0, new=11, prompts=1, length=None, tokens=None, suite="known"):
    return {
        "entrant": entrant,
        "suite": suite,
        "task": task,
        "round": at,
        "prompts": prompts,
        "new": new,
        "first_seconds": first,
        "seconds": seconds,
        "length": length,
        "tokens": tokens,
    }


def heat(kind, model, k, batch, records):
    names = dict.fromkeys(r["entrant"] for r in records)
    about = {n: {"k": 4 if k is None else k, "engine": n.partition("-")[0], "peak_bytes": 2**30} for n in names}
    about = {n: e | {"versions": {f"package-of-{e['engine']}": "1.0"}} for n, e in about.items()}
    return {
        "heat": {"kind": kind, "model": model, "k": k, "batch": batch},
        "entrants": about,
        "records": records,
    }


@pytest.fixture
def results():
    plain = [record("draftline", i, 0.1, s, tokens=[[1, 2]]) for i, s in enumerate((1.1, 1.1, 3.1))]
    plain += [record("draftline-draft-alone", i, 0.1, 0.35) for i in range(3)]
    plain += [record("openvino", i, 0.1, s) for i, s in enumerate((2.1, 2.1, 2.1))]
    drafted = [record("draftline", i, 0.1, 0.6, new=11, length=5.0) for i in range(3)]
    drafted += [record("openvino", i, 0.1, 1.1, new=11, length=5.0) for i in range(3)]
    real = [record("draftline", 0, 0.1, 1.1, suite="prose", tokens=[[1, 2, 3]], length=1.0)]
    real += [record("hf", 0, 0.1, 5.1, suite="prose", tokens=[[1, 2, 3]])]
    speculative = [record("draftline-mtp", 0, 0.1, 0.6, suite="prose", tokens=[[1, 2, 3]], length=2.0)]
    speculative += [record("hf-ngram", 0, 0.1, 2.6, suite="prose", tokens=[[1, 9, 3]])]
    heats = [("known", "135m", 0, 1, plain), ("known", "135m", 4, 1, drafted)]
    heats += [("real", "smollm2", 0, 1, real), ("real", "smollm2", None, 1, speculative)]
    named = {f"{kind}-{model}-{'drafted' if k is None else f'k{k}'}-b{b}": heat(kind, model, k, b, r)
             for kind, model, k, b, r in heats}  # fmt: skip
    named["known-135m-k0-b1"]["entrants"]["vllm"] = {"k": 0, "engine": "vllm", "error": "no wheel; see /somewhere"}
    machine = {"cpu": "Some CPU", "cores": 2, "flags": ["avx2"], "memory_bytes": 2**34, "threads": 2}
    return {"machine": machine | {"load_before": 0.1}, "bandwidth": 4e10, "heats": named}


def test_speed_is_decode_only_and_the_ratio_pairs_rounds(results):
    found = figures(results["heats"]["known-135m-k0-b1"]["records"])
    assert list(found["draftline"].speeds.values()) == pytest.approx([10, 10, 10 / 3])
    assert found["draftline"].speed == pytest.approx(10)
    assert found["draftline"].quartiles == pytest.approx((20 / 3, 10))
    assert ratio(found["draftline"], found["openvino"]) == pytest.approx(2.0)  # of 2, 2, 0.67
    assert best_peer(found) == "openvino"


def test_prefill_is_the_median_of_its_task():
    rows = [record("hf", 0, 0.1, 1.1), record("hf", 1, 0.1, 1.1), record("hf", 2, 0.9, 1.1)]
    rows += [record("hf", 0, 0.5, 1.5, task=1, new=22, prompts=2)]
    assert list(figures(rows)["hf"].speeds.values()) == pytest.approx([10, 10, 10, 20])


def test_efficiency_by_hand(results):
    plain, drafted = (figures(results["heats"][f"known-135m-k{k}-b1"]["records"]) for k in (0, 4))
    found = efficiency(plain, drafted["draftline"], 4)
    assert found.share == pytest.approx(4 * 10 / 40)  # the draft alone makes 40 tokens/s
    assert found.bound == pytest.approx(5 / 2)
    assert found.gain == pytest.approx(2)


def test_texts_are_compared_with_the_engine_s_own(results):
    drafted, plain = (results["heats"][f"real-smollm2-{k}-b1"]["records"] for k in ("drafted", "k0"))
    assert agreement(drafted, plain) == {"draftline-mtp": (1, 1), "hf-ngram": (0, 1)}


def test_the_page_is_filled_and_can_be_filled_again(results, tmp_path):
    saved, page = tmp_path / "r.json", tmp_path / "performance.md"
    saved.write_text(json.dumps(results))
    names = sorted(report.parts(results))
    page.write_text("# Speed\n\n" + "\n".join(f"Words.\n\n<!-- {n} -->\nold\n<!-- end -->" for n in names))
    for _ in range(2):
        report.main(["--results", str(saved), "--page", str(page)])
    text = page.read_text()
    assert "old" not in text
    assert text.count("Words.") == len(names)
    assert "| draftline | 10.0 | 20.0 |" in text
    assert "| **draftline ÷ best peer** | 2.00 | 2.00 |" in text
    assert "| draftline | length | draft share |" in text
    assert "| 135m, K=4 | 5.00 | 1.00 | 2.50 | 2.00 | **0.80** |" in text
    assert "| prose | draftline, MTP head | 4 | 20.0 | 2.00 | 2.00 | 5.00 | 1/1 |" in text
    assert "- Did not run: vLLM-CPU in known-135m-k0-b1: no wheel." in text
    assert "Read bandwidth: 40.0 GB/s" in text
    assert (tmp_path / "performance.png").read_bytes().startswith(b"\x89PNG")


def test_a_mark_without_a_table_is_named(results):
    with pytest.raises(SystemExit, match="wrong"):
        report.fill("<!-- wrong -->\n<!-- end -->", report.parts(results))


def test_the_real_page_has_every_mark(results):
    page = report.fill(report.PAGE.read_text("utf-8"), report.parts(results))
    assert tables.streaming_table(results) in page
