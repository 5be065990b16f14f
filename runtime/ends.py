"""Where a request ends: at end-of-sequence, a stop token, a stop string, its own limit, or the context's.

Knows: the new tokens of one request, in order. Does not know: steps, how tokens were chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from draftline.stages.sampling.sampler import NOTHING

from .request import FinishReason, Live

NOTHING_LEFT = "no token is left that all it asks for allows together: its grammar, min_tokens, bad_words, logit_bias"
"""The error of a request that ends because of a NOTHING."""


def cut(live: Live, new: Sequence[int], eos: Collection[int], max_len: int) -> tuple[list[int], FinishReason | None]:
    """What is kept of a step's tokens, and why the request ends with the last of them, if it does: nothing behind an
    end is returned, counted or charged, nor the NOTHING that is an error. Sets the request's ``stop_reason``. A stop
    counts before a limit that the same token meets, as in vLLM. ``eos``: end-of-sequence ids. ``max_len``: positions
    of the context."""
    for i, token in enumerate(new, 1):
        if token == NOTHING:
            return list(new[: i - 1]), "error"
        completed = None if live.stops is None else live.stops.feed(token)
        if token in eos and not live.request.ignore_eos:
            return list(new[:i]), "stop"
        if token in live.request.sampling.stop_token_ids:
            live.stop_reason = token
            return list(new[:i]), "stop"
        if completed is not None:
            live.stop_reason = completed
            return list(new[:i]), "stop"
        if live.made + i == live.request.max_new_tokens:
            return list(new[:i]), "length"
        if len(live.tokens) + i == max_len:
            return list(new[:i]), "context"
    return list(new), None
