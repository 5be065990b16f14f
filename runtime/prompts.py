"""Prompts from flags and JSON-lines files. Knows: their form. Does not know: tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftline.graph.errors import RequestError, nearest

from . import sampling_flags

_KEYS = ("prompt", "max_new_tokens", "num_speculative_tokens", *sampling_flags.KEYS)


@dataclass(frozen=True)
class Prompt:
    """A prompt's text; None means the run's own value. ``where`` names it in messages. ``sampling``: its own (name,
    value) pairs of sampling parameters."""

    text: str
    where: str
    max_new_tokens: int | None = None
    num_speculative_tokens: int | None = None
    sampling: tuple[tuple[str, Any], ...] = ()


def from_flags(texts: list[str]) -> list[Prompt]:
    """One per ``--prompt``, in order. Raises RequestError for an empty one."""
    return [_checked(Prompt(t, f"--prompt {i}")) for i, t in enumerate(texts, 1)]


def from_file(path: Path) -> list[Prompt]:
    """One per line: ``{"prompt": "…"}``, with max_new_tokens, num_speculative_tokens and sampling parameters if wanted.

    Raises RequestError with file and line.
    """
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # splitlines() would cut at U+2028 inside a string
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--prompt-file {path}: cannot be read: {error}") from None
    out = [_parse(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not out:
        raise RequestError(f'--prompt-file {path}: holds no prompt; one {{"prompt": "…"}} per line is wanted')
    return out


def _parse(line: str, where: str) -> Prompt:
    try:
        value: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestError(f"{where}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f'{where}: a JSON object is wanted, such as {{"prompt": "…"}}')
    for key in value:
        if key not in _KEYS:
            raise RequestError(f"{where}: unknown key {key!r}{nearest(key, _KEYS)}")
    if not isinstance(value.get("prompt"), str):
        raise RequestError(f"{where}: 'prompt' is missing or not a string")
    for key, least in (("max_new_tokens", 1), ("num_speculative_tokens", 0)):
        n = value.get(key)
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < least):
            raise RequestError(f"{where}: {key} is {json.dumps(n)}; an integer of {least} or more is wanted")
    limits = value.get("max_new_tokens"), value.get("num_speculative_tokens")
    return _checked(Prompt(value["prompt"], where, *limits, sampling_flags.from_line(value, where)))


def _checked(prompt: Prompt) -> Prompt:
    if not prompt.text:
        raise RequestError(f"{prompt.where}: the prompt is empty")
    try:
        prompt.text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{prompt.where}: the prompt is not valid UTF-8") from None
    return prompt
