"""A request and what becomes of it. Knows: tokens, limits, finish reasons, counts. Does not know: plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from draftline.graph.errors import RequestError
from draftline.stages.sampling.params import GREEDY, SamplingParams, TokenLogprobs

from .adaptive import Evidence
from .ranges import check_sampling
from .slots import Slot
from .stopping import StopStrings

FinishReason = Literal["stop", "length", "context", "error", "abort"]
"""``stop``: an end-of-sequence token, a stop token or a stop string. ``length``: max_new_tokens. ``context``:
max_model_len is full. ``error``: a stage raised on it, or took its worker down; the other requests go on. ``abort``: it
was cancelled."""


@dataclass(frozen=True)
class Delta:
    """The tokens that a step added to a request. ``logprobs``: one each if the request asked for them, else none."""

    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


Listener = Callable[[Delta], None]
"""Called after every step, for every request that it added to."""


@dataclass(frozen=True)
class Request:
    """A prompt as token ids with its limits. ``num_speculative_tokens`` None means the engine's K. ``sampling``: how
    its tokens are chosen. ``stop``: strings that end it; the text before one is what is returned."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    num_speculative_tokens: int | None = None
    ignore_eos: bool = False
    sampling: SamplingParams = GREEDY
    stop: tuple[str, ...] = ()


def check(request: Request, vocab_size: int, max_len: int, where: str = "prompt") -> None:
    """Raises RequestError naming what is wrong with the request and what would be right."""
    if not request.prompt:
        raise RequestError(f"{where}: is empty; at least one token is needed")
    if len(request.prompt) > max_len:
        raise RequestError(
            f"{where}: has {len(request.prompt)} tokens, the context holds max_model_len={max_len}; shorten it"
        )
    for i, token in enumerate(request.prompt):
        if not 0 <= token < vocab_size:
            raise RequestError(f"{where}: token {i} is {token}, the vocabulary has ids 0 … {vocab_size - 1}")
    if request.max_new_tokens < 1:
        raise RequestError(f"{where}: max_new_tokens is {request.max_new_tokens}; 1 or more is wanted")
    k = request.num_speculative_tokens
    if k is not None and k < 0:
        raise RequestError(f"{where}: num_speculative_tokens is {k}; 0 or more is wanted")
    check_sampling(request.sampling, request.max_new_tokens, vocab_size, where)
    if any(not isinstance(s, str) or not s for s in request.stop):
        raise RequestError(f"{where}: stop is {request.stop!r}; strings of at least one character are wanted")


@dataclass
class Counts:
    """What speculation did for one request. ``proposed[i]`` and ``accepted[i]`` count draft i + 1."""

    steps: int = 0
    tokens: int = 0
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, proposed: int, accepted: int, tokens: int) -> None:
        """One step: ``proposed`` drafts, of which the first ``accepted`` stood; ``tokens`` were kept."""
        self.steps += 1
        self.tokens += tokens
        for counter, n in ((self.proposed, proposed), (self.accepted, accepted)):
            counter.extend([0] * (n - len(counter)))
            for i in range(n):
                counter[i] += 1

    @property
    def num_draft_tokens(self) -> int:
        return sum(self.proposed)

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.accepted)

    def per_position(self, k: int) -> list[float]:
        """Share of the steps that proposed draft i + 1 in which it was accepted, for i < k; 0.0 if none did."""
        counts = zip((self.proposed + [0] * k)[:k], (self.accepted + [0] * k)[:k], strict=True)
        return [a / p if p else 0.0 for p, a in counts]

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step, 1 … K+1; 0.0 before the first step."""
        return self.tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class Output:
    """A finished request. ``token_ids`` are the new ones, an end-of-sequence token included."""

    index: int
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    counts: Counts
    num_speculative_tokens: int
    prefill_seconds: float
    decode_seconds: float
    error: str | None = None
    """What went wrong, where ``finish_reason`` is ``error``."""
    stop_reason: int | str | None = None
    """The stop token id or the stop string that ended it; None at an end-of-sequence token, as in vLLM."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of ``token_ids``, if the request asked for them."""


NOWHERE = Slot(-1, 0)


@dataclass
class Live:
    """A request that waits or runs, with its journal: ``tokens`` are the prompt and what was committed.

    ``seat``: the last slot that it had. ``cached``: the caches hold all rows before the tail, ``filled``: how many
    they hold until then. ``arrival``: when it came, counted. Its part in prefix caching (``prefix.py``): ``keys``
    of its pages, how many are ``published``, the rings to ``restore``, the rows that it ``shared``. ``num_recent``:
    how many of the last tokens the drafter is given in its next step, ``seen``: how many rows of its cache are
    right, see ``catch_up.py``. ``drafts``: of the last step, of which ``accepted`` stood. ``strikes``: failures
    while it ran alone. ``evidence``: what adaptive depth knows of its drafts. ``cancelled``: nobody wants it any
    more; the next step begins without it. ``words``: its sampling parameters as a step is told them, None if
    greedy. ``stops``: looks for its stop strings."""

    index: int
    request: Request
    tokens: list[int]
    slot: Slot = NOWHERE
    seat: int = -1
    cached: bool = False
    filled: int = 0
    arrival: int = 0
    keys: tuple[bytes, ...] = ()
    published: int = 0
    restore: int = -1
    shared: int = 0
    preemptions: int = 0
    num_recent: int = 0
    seen: int = 0
    drafts: int = 0
    accepted: int = 0
    strikes: int = 0
    counts: Counts = field(default_factory=Counts)
    evidence: Evidence = field(default_factory=lambda: Evidence(0))
    queued: float = 0.0
    began: float = 0.0
    began_ns: int = 0
    prefill_seconds: float = 0.0
    cancelled: bool = False
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    words: np.ndarray | None = field(default=None, compare=False)
    stops: StopStrings | None = field(default=None, compare=False)

    def lose(self) -> None:
        """Its rows have to be computed again."""
        self.cached, self.filled = False, 0

    @property
    def made(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    def output(self, reason: FinishReason, k: int, error: str | None = None) -> Output:
        """The request as it ends now; ``k`` is what the engine was asked for."""
        asked = self.request.num_speculative_tokens
        return Output(
            index=self.index,
            prompt=self.request.prompt,
            token_ids=tuple(self.new_tokens),
            finish_reason=reason,
            counts=self.counts,
            num_speculative_tokens=k if asked is None else min(asked, k),
            prefill_seconds=self.prefill_seconds,
            decode_seconds=time.perf_counter() - self.began - self.prefill_seconds if self.began else 0.0,
            error=error,
            stop_reason=self.stop_reason,
            logprobs=tuple(self.logprobs),
        )
