"""What a request asks of the sampler. Knows: values and what they need. Does not know: logits, requests, HTTP.

Names and defaults are vLLM's and OpenAI's, but for ``temperature``, which is 0 (greedy) unless somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_LOGPROBS = 20
"""Most likely tokens that a request may ask for with each of its own; vLLM's and OpenAI's limit."""

COLD = 1e-5
"""A temperature below this is 0, as in vLLM: logits that are divided by it leave what floating point tells apart."""


@dataclass(frozen=True)
class Grammar:
    """The form that a request's text has. ``spec``: a JSON schema, a regular expression, a JSON list of strings, or
    nothing where any JSON object will do."""

    kind: Literal["json_schema", "regex", "choice", "json_object"]
    spec: str = ""


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen.

    ``temperature`` 0: the likeliest token. ``top_k`` 0 or -1: all. ``top_p`` in (0, 1]; the token that crosses p stays.
    ``min_p`` in [0, 1]: of the likeliest token's probability. ``seed``: counter-based randomness, so the same seed
    gives the same tokens whatever the batch, the runtime or a retry. ``repetition_penalty`` above 0, over prompt and
    output; ``presence_penalty`` and ``frequency_penalty`` in [-2, 2], over the output. ``logit_bias``: (token, bias)
    pairs. ``min_tokens``: end-of-sequence and ``stop_token_ids`` cannot come before as many. ``bad_words``: token
    sequences that are never completed. ``logprobs``: None for none, n for those of the n likeliest tokens beside the
    chosen one, by the model's own logits. ``grammar``: the form of the text; None: any."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def cold(self) -> bool:
        """Whether nothing is drawn: the likeliest token, after what may change it."""
        return self.temperature < COLD

    @property
    def penalised(self) -> bool:
        """Whether tokens that came before change a token's score."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def plain(self) -> bool:
        """Whether the target's likeliest token is all that is wanted."""
        changed = self.penalised or self.logit_bias or self.min_tokens or self.bad_words or self.grammar
        return self.cold and not changed and self.logprobs is None

    @property
    def looks_back(self) -> bool:
        """Whether the tokens before the tail must be known."""
        return self.penalised or self.grammar is not None or any(len(word) > 1 for word in self.bad_words)


GREEDY = SamplingParams()


@dataclass(frozen=True)
class TokenLogprobs:
    """Of one returned token, by the target's own logits before any of the above: its log-probability, its rank (1: the
    likeliest), and the likeliest ``top`` (token, log-probability) pairs, likeliest first."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()
