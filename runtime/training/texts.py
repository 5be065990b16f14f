"""Prompts for training: the beginnings of the user's files, and questions that the target asks itself.

Knows: files, folders, JSON lines. Does not know: how a prompt is continued.

A chat model that is given its template up to where the user speaks writes a question (Xu et al. 2024, "Magpie",
arXiv:2406.08464); so instructions need no data.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from draftline.graph.errors import UsageError

from ..chat import ChatTemplate
from ..text import Text

SUFFIXES = (".py", ".md", ".rst", ".txt", ".json", ".c", ".h", ".cpp", ".js", ".ts", ".go", ".rs", ".java", ".toml")
LARGEST = 2**20
"""Bytes of the largest file that is read."""


def sources(paths: Sequence[Path]) -> list[Path]:
    """All files that ``paths`` name, or that lie below them; sorted. Raises UsageError for a path that is not there, or
    if there is nothing at all."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += [p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file()]
        elif path.is_file():
            found.append(path)
        else:
            raise UsageError(f"--data {path}: no such file or folder")
    if not found:
        raise UsageError(f"--data: no file to read; endings that are looked for in a folder: {' '.join(SUFFIXES)}")
    return sorted(dict.fromkeys(found))


def prompts(
    files: Sequence[Path], text: Text, template: ChatTemplate | None, most: int, seed: int
) -> Iterator[list[int]]:
    """Prompts of 8 to ``most`` tokens, for ever: a stretch of a file from the beginning of a line, or a prompt of a
    ``.jsonl`` (``{"prompt": …}``, or ``{"messages": […]}`` for a chat model). Raises UsageError for a bad line."""
    rng = random.Random(seed)
    lines = {f: _lines(f, template) for f in files if f.suffix == ".jsonl"}
    while True:
        file = rng.choice(files)
        if file in lines:
            ids = text.encode(rng.choice(lines[file]))[-most:]
        else:
            whole = file.read_bytes()[:LARGEST].decode("utf-8", "replace")
            starts = [0] + [i + 1 for i, c in enumerate(whole) if c == "\n"]
            ids = text.encode(whole[rng.choice(starts) :][: 8 * most])[: rng.randint(16, most)]
        if len(ids) >= 8:
            yield list(ids)


def _lines(path: Path, template: ChatTemplate | None) -> list[str]:
    out = []
    for n, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            out.append(value["prompt"] if "prompt" in value else _chat(value["messages"], template))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f'{path}:{n}: {{"prompt": "…"}} or {{"messages": […]}} is wanted: {error!r}') from None
    if not out:
        raise UsageError(f"{path}: holds no prompt")
    return out


def _chat(messages: Any, template: ChatTemplate | None) -> str:
    if template is None:
        raise ValueError("the model has no chat template")
    return template.render(messages)
