"""How tokens are chosen, from flags and a prompt's own keys. Knows: their spelling. Does not know: their ranges."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Mapping
from typing import Any

from draftline.graph.errors import RequestError, UsageError
from draftline.stages.sampling.params import SamplingParams

from . import structured_flags
from .ranges import RANGES

MEANINGS = {
    "temperature": "0: the likeliest token (default); else tokens are drawn",
    "top_k": "of the K likeliest tokens; 0: all",
    "top_p": "of the likeliest tokens that together have probability P",
    "min_p": "of tokens at least P times as likely as the likeliest",
    "seed": "the same seed gives the same text; none: another one for every prompt",
    "logprobs": "with --json: log-probabilities, and those of the N likeliest tokens",
}
KEYS = (*MEANINGS, structured_flags.KEY)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for each key."""
    structured_flags.add_flags(parser)
    for name, meaning in MEANINGS.items():
        parser.add_argument(_flag(name), metavar="N" if RANGES[name].whole else "P", help=meaning)


def from_flags(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags say, by key. Raises UsageError."""
    found: dict[str, Any] = {}
    for name in MEANINGS:
        text = getattr(args, name)
        if text is None:
            continue
        try:
            found[name] = int(text) if RANGES[name].whole else float(text)
        except ValueError:
            found[name] = None
        if not RANGES[name].holds(found[name]):
            raise UsageError(f"{_flag(name)} is {text!r}; {RANGES[name].says} is wanted")
    found |= structured_flags.from_flags(args)
    if "logprobs" in found and not args.json:
        raise UsageError("--logprobs is for --json: the text has no place for them")
    return found


def from_line(line: Mapping[str, Any], where: str) -> tuple[tuple[str, Any], ...]:
    """What a prompt's own keys say. Raises RequestError."""
    for name in MEANINGS:
        if line.get(name) is not None and not RANGES[name].holds(line[name]):
            raise RequestError(f"{where}: {name} is {json.dumps(line[name])}; {RANGES[name].says} is wanted")
    own = tuple((name, line[name]) for name in MEANINGS if line.get(name) is not None)
    return own + structured_flags.from_line(line, where)


def params(flags: Mapping[str, Any], own: tuple[tuple[str, Any], ...]) -> SamplingParams:
    """A prompt's parameters; its own keys win over flags. Without a seed one is drawn, for this prompt alone."""
    chosen = {**flags, **dict(own)}
    return SamplingParams(**{"seed": secrets.randbits(63), **chosen})


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
