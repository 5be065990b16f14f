"""What sampling parameters may be. Knows: each field's range, which is vLLM's. Does not know: requests, graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftline.graph.errors import RequestError
from draftline.stages.sampling.params import MAX_LOGPROBS, SamplingParams

MOST_BIAS = 100.0
"""Largest logit_bias, either way; OpenAI's."""


@dataclass(frozen=True)
class Range:
    """A field's values: ``whole`` numbers or any, those that ``fits``; ``says``: in words."""

    says: str
    fits: Callable[[Any], bool]
    whole: bool = False

    def holds(self, value: Any) -> bool:
        kinds = (int,) if self.whole else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value) and self.fits(value)


RANGES: dict[str, Range] = {
    "temperature": Range("a number of 0 (greedy) or more", lambda v: v >= 0),
    "top_k": Range("an integer of 1 or more, or 0 or -1 for all", lambda v: v >= -1, whole=True),
    "top_p": Range("a number above 0 and at most 1", lambda v: 0 < v <= 1),
    "min_p": Range("a number from 0 to 1", lambda v: 0 <= v <= 1),
    "seed": Range("an integer of at most 64 bits", lambda v: -(1 << 63) <= v < 1 << 64, whole=True),
    "repetition_penalty": Range("a number above 0", lambda v: v > 0),
    "presence_penalty": Range("a number from -2 to 2", lambda v: -2 <= v <= 2),
    "frequency_penalty": Range("a number from -2 to 2", lambda v: -2 <= v <= 2),
    "min_tokens": Range("an integer of 0 or more", lambda v: v >= 0, whole=True),
    "logprobs": Range(f"an integer from 0 to {MAX_LOGPROBS}", lambda v: 0 <= v <= MAX_LOGPROBS, whole=True),
}


def check_sampling(p: SamplingParams, max_new_tokens: int, vocab_size: int, where: str) -> None:
    """Raises RequestError naming the field, its value and what is wanted."""
    for name, wanted in RANGES.items():
        value = getattr(p, name)
        if not wanted.holds(value) and not (name == "logprobs" and value is None):
            raise RequestError(f"{where}: {name} is {value!r}; {wanted.says} is wanted")
    if p.min_tokens > max_new_tokens:
        raise RequestError(f"{where}: min_tokens is {p.min_tokens}, which is more than max_new_tokens={max_new_tokens}")
    for token, bias in p.logit_bias:
        _known(token, vocab_size, f"{where}: logit_bias")
        if not math.isfinite(bias) or abs(bias) > MOST_BIAS:
            raise RequestError(
                f"{where}: logit_bias of token {token} is {bias!r}; a number from {-MOST_BIAS:g} to {MOST_BIAS:g} is"
                " wanted"
            )
    tokens = [token for token, _ in p.logit_bias]
    if len(set(tokens)) < len(tokens):
        twice = next(t for t in tokens if tokens.count(t) > 1)
        raise RequestError(f"{where}: logit_bias names token {twice} twice; one bias per token is wanted")
    for token in p.stop_token_ids:
        _known(token, vocab_size, f"{where}: stop_token_ids")
    for word in p.bad_words:
        if not word:
            raise RequestError(f"{where}: bad_words holds one without tokens; at least one token each is wanted")
        for token in word:
            _known(token, vocab_size, f"{where}: bad_words")


def _known(token: int, vocab_size: int, where: str) -> None:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
        raise RequestError(f"{where} names token {token!r}; the vocabulary has ids 0 … {vocab_size - 1}")
