"""The plan cache: hits, misses with their reason, damaged files."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from compiler_fakes import MTP, lookup, plan_of, settings, with_node

from draftline.compiler import compile as compiling
from draftline.compiler.cache import default_directory, lookup_or_compile
from draftline.compiler.costs import DEFAULT_COSTS
from draftline.compiler.plan import CostEntry
from draftline.graph.errors import GraphError


def get(directory, k=3, graph=MTP, **extra):
    changes = extra.pop("changes", {})
    return lookup_or_compile(graph, directory=directory, lookup=lookup, **settings(k, **changes), **extra)


def test_first_miss_then_hit(tmp_path):
    plan, report = get(tmp_path)
    assert (report.hit, report.reason) == (False, "no plan is cached yet")
    again, second = get(tmp_path)
    assert second.hit
    assert again == plan == plan_of(3)
    assert [path.name for path in tmp_path.iterdir()] == [f"{plan.key}.json"]
    assert str(second) == f"plan cache hit: {second.path}"


@pytest.mark.parametrize(
    ("extra", "changed", "said"),
    [
        ({"k": 4}, ("K",), "K changed from 3 to 4"),
        ({"graph": replace(MTP, name="other")}, ("graph",), "graph changed"),
        ({"costs": replace(DEFAULT_COSTS, acceptance=0.5)}, ("cost table",), "cost table changed"),
        (
            {"costs": replace(DEFAULT_COSTS, entries=(*DEFAULT_COSTS.entries, CostEntry("pad", 8, 3.0, "measured")))},
            ("cost table",),
            "cost table changed",
        ),
        ({"changes": {"dtype": "bf16"}}, ("dtype",), "dtype changed from float32 to bfloat16"),
        ({"changes": {"device": "cpu:1"}}, ("device",), "device changed from cpu:0 to cpu:1"),
        (
            {"k": 4, "changes": {"tile": 16}},
            ("K", "tile"),
            "K changed from 3 to 4 and tile changed from 8 to 16",
        ),
    ],
)
def test_miss_says_what_changed(tmp_path, extra, changed, said):
    get(tmp_path)
    _, report = get(tmp_path, **extra)
    assert (report.hit, report.changed, report.reason) == (False, changed, said)
    assert get(tmp_path, **extra)[1].hit


def test_nearest_plan_is_compared(tmp_path):
    get(tmp_path, k=3)
    get(tmp_path, k=5, changes={"tile": 16, "max_num_seqs": 4})
    assert get(tmp_path, k=4)[1].changed == ("K",)
    assert get(tmp_path, k=5, changes={"tile": 16, "max_num_seqs": 3})[1].changed == ("max num seqs",)


def test_other_version_misses(tmp_path, monkeypatch):
    get(tmp_path)
    monkeypatch.setattr(compiling, "versions", lambda: {"draftline": "9", "plan format": "1", "torch": "1.0"})
    _, report = get(tmp_path)
    assert "version of torch" in report.changed
    assert "version of draftline changed from" in report.reason


def test_stage_signature_is_part_of_the_key(tmp_path):
    get(tmp_path)

    def other(name):
        found = lookup(name)
        found.signature = replace(found.signature, options=(*found.signature.options, ("more", 1)))
        return found

    _, report = lookup_or_compile(MTP, directory=tmp_path, lookup=other, **settings(3))
    assert report.changed == ("stage signatures",)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "\x00\x01",
        lambda text: text.replace('"tile": 8', '"tile": 16'),
        lambda text: json.dumps({**json.loads(text), "digest": "0"}),
        lambda text: json.dumps({**json.loads(text), "plan": 3}),
    ],
)
def test_damaged_file_is_compiled_again(tmp_path, damage):
    plan, report = get(tmp_path)
    assert isinstance(report.path, Path)
    report.path.write_text(damage(report.path.read_text()))
    again, second = get(tmp_path)
    assert (again, second.hit) == (plan, False)
    assert "damaged and was compiled again" in second.reason
    assert get(tmp_path)[1].hit


def test_binary_garbage_is_compiled_again(tmp_path):
    plan, report = get(tmp_path)
    report.path.write_bytes(b"\xff\xfe\x80garbage")
    assert get(tmp_path)[0] == plan
    assert get(tmp_path)[1].hit


def test_foreign_files_are_ignored(tmp_path):
    (tmp_path / "note.json").write_text("not json")
    (tmp_path / "list.json").write_text('{"components": []}')
    assert get(tmp_path)[1].reason == "no plan is cached yet"


def test_bad_graph_is_named_with_its_node(tmp_path):
    with pytest.raises(GraphError, match=r"'pad'.*'pda'"):
        get(tmp_path, graph=with_node(MTP, "pad", stage="pda"))
    assert list(tmp_path.iterdir()) == []


def test_no_directory_no_cache():
    _, report = get(None)
    assert (report.hit, report.reason, report.path) == (False, "the cache is off", None)


def test_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    plan, report = get(tmp_path / "file" / "plans")
    assert plan == plan_of(3)
    assert "not stored" in report.reason


def test_dump_always_compiles(tmp_path):
    get(tmp_path)
    seen = []
    _, report = get(tmp_path, dump=lambda name, ir: seen.append(name))
    assert tuple(seen) == compiling.PASSES
    assert not report.hit


def test_no_temporary_file_is_left(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in get(tmp_path)[1].reason
    assert list(tmp_path.iterdir()) == []


def test_default_directory_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "draftline" / "plans"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_directory() == Path.home() / ".cache" / "draftline" / "plans"
