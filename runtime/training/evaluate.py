"""How well a head drafts: real decoding at temperature 0, counted per position.

Knows: prompts in, counts out. Does not know: how the head was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..pipeline import open_pipeline


@dataclass(frozen=True)
class Acceptance:
    """``length``: tokens per step, 1 … K+1. ``per_position``: share of the steps that proposed draft i + 1 in which it
    was accepted."""

    prompts: int
    tokens: int
    length: float
    per_position: tuple[float, ...]


def acceptance(
    model: str, mtp: str, prompts: Sequence[Sequence[int] | str], k: int, new: int, dtype: str = "bf16"
) -> Acceptance:
    """Decode ``new`` tokens for each prompt with K = ``k``. Raises ModelError and RequestError."""
    with open_pipeline(
        "mtp.yaml",
        model=model,
        mtp=mtp,
        dtype=dtype,
        num_speculative_tokens=k,
        max_num_seqs=1,
        max_new_tokens=new,
    ) as pipeline:
        outputs = pipeline.generate(prompts)
    steps, tokens = sum(o.counts.steps for o in outputs), sum(o.counts.tokens for o in outputs)
    accepted, proposed = ([0] * k for _ in range(2))
    for o in outputs:
        for counts, total in ((o.counts.accepted, accepted), (o.counts.proposed, proposed)):
            for i, n in enumerate(counts):
                total[i] += n
    shares = tuple(a / p if p else 0.0 for a, p in zip(accepted, proposed, strict=True))
    return Acceptance(len(outputs), tokens, tokens / max(steps, 1), shares)
