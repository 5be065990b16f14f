"""Every command and every Python snippet in README.md and docs/ runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import smollm2

from draftline.runtime.bench import cli as bench
from draftline.runtime.cli import main
from draftline.runtime.fetch import cli as fetch
from draftline.runtime.serve import cli as serve
from draftline.runtime.training import cli as training

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PARSERS = {
    "draftline-fetch": fetch.parser,
    "draftline-train-mtp": training.parser,
    "pipeline-serve": serve.parser,
    "pipeline-bench": bench.parser,
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}:{text[: m.start()].count(chr(10)) + 1}", m.group(2))
        for page in PAGES
        for text in [page.read_text("utf-8")]
        for m in BLOCK.finditer(text)
        if m.group(1) == language
    ]


COMMANDS = [
    (where, line)
    for where, block in blocks("sh")
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.mark.parametrize(("where", "line"), COMMANDS, ids=[f"{w}-{i}" for i, (w, _) in enumerate(COMMANDS)])
def test_command(where, line, monkeypatch, tmp_path, capsys):
    words = shlex.split(line, comments=True)
    if "smollm2" in words and words[0] == "pipeline-run":
        smollm2.fetched()
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if words[0] in PARSERS:  # they take minutes and more, and have tests of their own
        PARSERS[words[0]]().parse_args(words[1:])
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        assert {w for w in words[1:] if "=" not in w} <= set(targets), where
    elif words[0] == "pipeline-run":
        if "|" in words:
            words = words[: words.index("|")]
        if ">" in words:
            words = words[: words.index(">")]
        assert main(words[1:]) == 0, f"{where}: {line}\n{capsys.readouterr().err}"
        assert capsys.readouterr().out
    else:
        assert words[:2] == ["python", "-m"], f"{where}: {line!r} is a command that no test runs"
        path = ROOT / (words[2].replace(".", "/") + ".py")
        assert path.exists(), f"{where}: {words[2]} is not a module here"
        known = path.read_text("utf-8")
        assert all(f'"{w}"' in known for w in words[3:] if w.startswith("--")), f"{where}: {line}"


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=[w for w, _ in blocks("python")])
def test_snippet(where, code, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(code, where, "exec"), {"__name__": "snippet"})


def test_printed_plan_is_the_real_plan(monkeypatch, capsys, tmp_path):
    """The plan printed in life-of-a-step.md is what the command above it prints today (versions and key aside)."""
    text = (ROOT / "docs" / "life-of-a-step.md").read_text("utf-8")
    printed = next(m.group(2) for m in BLOCK.finditer(text) if m.group(1) == "text")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # costs that were measured here would change it
    assert main(["--graph", "mtp.yaml", "-K", "3", "--max-num-seqs", "2", "--explain", "--no-plan-cache"]) == 0
    assert _stable(capsys.readouterr().out) == _stable(printed)


def _stable(plan: str) -> list[str]:
    lines = [line.rstrip() for line in plan.strip().splitlines()]
    return [re.sub(r"key \w+", "key", line) for line in lines if not line.startswith("versions")]
