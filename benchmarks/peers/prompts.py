"""Prompts of the two kinds of race, as token ids. Knows: the suites' sources. Does not know: engines."""

from __future__ import annotations

import random

from draftline.runtime.text import Text
from draftline.stages.models.places import resolve

LENGTH = 32
"""Tokens of a known-acceptance prompt."""


def known(seed: int = 0) -> list[int]:
    """Random ids of SmolLM2's ordinary tokens, which every shape's vocabulary holds."""
    return random.Random(seed).sample(range(1000, 49000), LENGTH)


def real(model: str, per_suite: int, most_tokens: int = 400) -> dict[str, list[list[int]]]:
    """Prompts by suite (humaneval, gsm8k, prose), evenly spread; those above ``most_tokens`` ids are left out.
    Raises SystemExit where the extra [bench] is not installed."""
    from benchmarks.smollm2 import suites

    text = Text(resolve(model))
    encoded = {name: [list(text.encode(t)) for t in texts] for name, texts in suites(model, 3 * per_suite).items()}
    fitting = {name: [ids for ids in prompts if len(ids) <= most_tokens] for name, prompts in encoded.items()}
    return {name: found[:: max(len(found) // per_suite, 1)][:per_suite] for name, found in fitting.items()}
