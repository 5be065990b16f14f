"""Which K the flags ask for. Knows: the flags' precedence and their conflicts. Does not know: graphs' innards.

``--num-speculative-tokens`` says K. ``--speculative-config`` says K and a method, as vLLM's flag does, and a draft
model, as ``--draft-model`` does. ``--enable-mtp`` is the old way to say K=1. An explicit K wins over ``--enable-mtp``;
two different K or draft models, or speculation that is on and off at once, are refused.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass

from draftline.graph.errors import UsageError, nearest

METHODS = {"mtp": "draft.mtp", "ngram": "draft.ngram", "draft_model": "draft.model"}
_KEYS = ("method", "model", "num_speculative_tokens")


@dataclass(frozen=True)
class Wish:
    """What the flags ask for; None where no flag says. ``k``: depth. ``stage``: that must draft. ``draft_model``:
    folder or name."""

    k: int | None = None
    stage: str | None = None
    draft_model: str | None = None


def depth(text: str) -> int:
    """An integer ≥ 0 from a flag. Raises UsageError."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0 or not text.strip().lstrip("+").isdigit():
        raise UsageError(f"--num-speculative-tokens/-K is {text!r}; an integer of 0 or more is wanted")
    return value


def config(text: str) -> Wish:
    """What ``--speculative-config`` says; a ``model`` is a draft model, as in vLLM. Raises UsageError."""
    flag = "--speculative-config"
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{flag}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f'{flag}: a JSON object is wanted, such as {{"method": "mtp", "num_speculative_tokens": 3}}')
    for key in value:
        if key not in _KEYS:
            raise UsageError(f"{flag}: unknown key {key!r}{nearest(key, _KEYS)}")
    method, model, k = (value.get(key) for key in _KEYS)
    if method is not None and method not in METHODS:
        raise UsageError(f"{flag}: method is {method!r}{nearest(str(method), METHODS)}")
    if model is not None and not (isinstance(model, str) and model):
        raise UsageError(f"{flag}: model is {json.dumps(model)}; the folder or the name of a draft model is wanted")
    if model is not None and method not in (None, "draft_model"):
        raise UsageError(f"{flag}: model names a draft model, which method {method!r} does not have; give one of them")
    if model is not None:
        method = "draft_model"
    if k is None:
        raise UsageError(f"{flag}: num_speculative_tokens is missing")
    if isinstance(k, bool) or not isinstance(k, int) or k < 0:
        raise UsageError(f"{flag}: num_speculative_tokens is {json.dumps(k)}; an integer of 0 or more is wanted")
    return Wish(k, None if method is None else METHODS[method], model)


def resolve(args: argparse.Namespace, warn: Callable[[str], None]) -> Wish:
    """What the flags ask for together. Raises UsageError on conflicts."""
    said: dict[str, int] = {}
    told = Wish()
    if args.num_speculative_tokens is not None:
        said["--num-speculative-tokens/-K"] = depth(args.num_speculative_tokens)
    if args.speculative_config is not None:
        told = config(args.speculative_config)
        said["--speculative-config"] = told.k  # type: ignore[assignment]
    if len(set(said.values())) > 1:
        raise UsageError(" and ".join(f"{flag} says K={k}" for flag, k in said.items()) + "; give one of them")
    flag, k = next(iter(said.items()), ("", None))
    if args.enable_mtp is True:
        warn("--enable-mtp is deprecated; say --num-speculative-tokens 1")
        if k == 0:
            raise UsageError(f"--enable-mtp asks for speculation and {flag} says K=0; give one of them")
        k = 1 if k is None else k
    if args.enable_mtp is False:
        if k:
            raise UsageError(f"--no-enable-mtp asks for plain decoding and {flag} says K={k}; give one of them")
        k = 0
    own, other = args.draft_model, told.draft_model
    if own and other and own != other:
        raise UsageError(f"--draft-model says {own!r} and --speculative-config says {other!r}; give one of them")
    return Wish(k, told.stage, own or other)
