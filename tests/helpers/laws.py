"""Small vocabularies with known laws, and decoding in bulk. Helper for tests; no tests in here.

The logits of a row are a function of (token, position), as a table; so the law of a continuation is a product that can
be written down, and thousands of requests are one tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from scripted import Scripted
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftline.stages.accept import accept_prefix
from draftline.stages.sampling import noise
from draftline.stages.sampling.choose import choose
from draftline.stages.sampling.params import SamplingParams
from draftline.stages.sampling.processors import Scores
from draftline.stages.sampling.sampler import Before, Drafted, WaveRows, pick
from draftline.stages.sampling.wire import tenant

PERIOD = 3


def table(vocab: int, seed: int, spread: float = 1.5) -> Tensor:
    """Logits [PERIOD, V, V] float32 by (position % PERIOD, token)."""
    return torch.randn(PERIOD, vocab, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def law(
    logits: Tensor, p: SamplingParams, prompt: Sequence[int], made: Sequence[int], eos: Sequence[int] = ()
) -> Tensor:
    """The law [V] float64 of the next token, written down once more: Hugging Face's processors where there is one."""
    x = logits[(len(prompt) + len(made) - 1) % PERIOD, [*prompt, *made][-1]].double()[None].clone()
    for word in p.bad_words:
        if len(word) == 1 or tuple(made[-len(word) + 1 :]) == word[:-1]:
            x[0, word[-1]] = -torch.inf
    if len(made) < p.min_tokens:
        x[0, [*eos, *p.stop_token_ids]] = -torch.inf
    for token, bias in p.logit_bias:
        x[0, token] += bias
    if p.repetition_penalty != 1:
        x = RepetitionPenaltyLogitsProcessor(p.repetition_penalty)(torch.tensor([[*prompt, *made]]), x)
    for token in set(made):
        x[0, token] -= p.presence_penalty + p.frequency_penalty * list(made).count(token)
    if p.temperature == 0:
        return torch.nn.functional.one_hot(x[0].argmax(), x.shape[1]).double()
    none = torch.zeros(1, 0, dtype=torch.int64)
    x = TemperatureLogitsWarper(float(p.temperature))(none, x)
    x = MinPLogitsWarper(p.min_p)(none, x) if p.min_p else x
    x = TopKLogitsWarper(p.top_k)(none, x) if p.top_k > 0 else x
    x = TopPLogitsWarper(p.top_p)(none, x) if p.top_p < 1 else x
    return x.softmax(1)[0]


def joint(logits: Tensor, p: SamplingParams, prompt: Sequence[int], length: int) -> Tensor:
    """The law [V ** length] of the first tokens, the first varying slowest."""
    vocab = logits.shape[-1]
    out = torch.zeros(vocab**length, dtype=torch.float64)
    for i, tokens in enumerate(itertools.product(range(vocab), repeat=length)):
        out[i] = 1.0
        for n, token in enumerate(tokens):
            if out[i] > 0:
                out[i] *= law(logits, p, prompt, tokens[:n])[token]
    return out


Rule = Callable[..., Tensor]
"""As ``sampler.pick``."""


@dataclass(frozen=True)
class Bulk:
    """Many requests at once, each with a seed of its own, by the functions that the stages call."""

    target: Tensor
    drafter: Tensor
    params: SamplingParams
    prompt: tuple[int, ...]
    k: int
    drawn: bool = False
    """Whether drafts are drawn, by the drafter's law at temperature 1, or its likeliest tokens."""
    chunk: int = 8

    def run(self, n: int, length: int, rule: Rule = pick, first_seed: int = 0) -> tuple[Tensor, float]:
        """New tokens [n, length] of n requests, and the share of drafts that stood."""
        base = tenant(0, self.params, len(self.prompt))
        who = {i: replace(base, params=replace(self.params, seed=first_seed + i)) for i in range(n)}
        seeds = torch.arange(first_seed, first_seed + n)
        history = torch.full((n, len(self.prompt) + length + self.k + 1), -1)
        history[:, : len(self.prompt)] = torch.tensor(self.prompt)
        size = torch.full((n,), len(self.prompt))
        proposed = stood = 0
        while int(size.min()) < len(self.prompt) + length:
            todo = (size < len(self.prompt) + length).nonzero()[:, 0]
            window, probs = self._window(history[todo], size[todo], seeds[todo])
            mine = {i: who[int(r)] for i, r in enumerate(todo)}
            predicted, accepted = self._verify(mine, history[todo], size[todo], window, probs, rule)
            for column in range(self.k + 1):
                told = column <= accepted
                at = (size[todo] + column).clamp(max=history.shape[1] - 1)
                history[todo[told], at[told]] = predicted[told, column]
            size[todo] += accepted + 1
            proposed, stood = proposed + len(todo) * self.k, stood + int(accepted.sum())
        return history[:, len(self.prompt) : len(self.prompt) + length], stood / max(proposed, 1)

    def _window(self, history: Tensor, size: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        tail = history.gather(1, size[:, None] - 1)[:, 0]
        columns, probs = [tail], []
        for i in range(self.k):
            x = self.drafter[(size - 1 + i) % PERIOD, columns[-1]].double()
            probs.append(x.softmax(1).float())
            drawn = choose(Scores(x, None, x.shape[1]), seeds, size + i, noise.DRAFT)
            columns.append(drawn if self.drawn else x.argmax(1))
        empty = torch.zeros(len(size), 0, self.drafter.shape[-1])
        return torch.stack(columns, 1), torch.stack(probs, 1) if probs else empty

    def _verify(self, who, history, size, window, probs, rule) -> tuple[Tensor, Tensor]:
        n, k = len(size), self.k
        depth, accepted, live = torch.full((n,), k), torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=torch.bool)
        predicted = torch.full((n, k + 1), -1)
        for start in range(0, k + 1, self.chunk):
            width = min(self.chunk, k + 1 - start)
            column = torch.arange(start, start + width)
            slots = torch.arange(n).repeat_interleave(width)
            positions = ((size - 1)[:, None] + column).flatten()
            logits = self.target[positions % PERIOD, window[:, start : start + width].flatten()]
            # A row sees the window no further than the stage is shown: its chunk, and one more of drawn drafts.
            shown = window[:, : start + width + self.drawn]
            wave = WaveRows(slots, positions, column.repeat(n))
            drafted = Drafted(torch.nn.functional.pad(shown, (0, 1)), depth, probs) if self.drawn else None
            tokens = rule(logits, who, wave, Before(history, shown), drafted).view(n, width)
            predicted[:, start : start + width] = tokens
            live, accepted = accept_prefix(window, tokens, depth, live, accepted, start)
        return predicted, accepted


def p_value(tokens: Tensor, expected: Tensor, vocab: int) -> float:
    """Pearson's chi-square of tokens [n, length] against the law [vocab ** length] of all: how likely a fit as bad is.
    Cells that are expected less than ten times count as one; a cell that cannot be is a p-value of 0."""
    cell = torch.zeros(len(tokens), dtype=torch.int64)
    for column in tokens.T:
        cell = cell * vocab + column
    counts, want = torch.bincount(cell, minlength=len(expected)).double(), expected * len(tokens)
    if bool((counts[want == 0] > 0).any()):
        return 0.0
    rare = want < 10
    seen, hoped = counts[~rare], want[~rare]
    if float(want[rare].sum()) >= 10:
        seen = torch.cat((seen, counts[rare].sum()[None]))
        hoped = torch.cat((hoped, want[rare].sum()[None]))
    statistic = ((seen - hoped) ** 2 / hoped).sum()
    return float(torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2.0, dtype=torch.float64), statistic / 2))


@dataclass
class Tabled(Scripted):
    """A target with the logits of a table; its greedy token is their argmax."""

    rows: Tensor = None  # type: ignore[assignment]

    def logits(self, streams: Tensor) -> Tensor:
        token, position = streams[:, 0].long().unbind(-1)
        return self.rows[position.clamp(min=0) % PERIOD, token.clamp(0, self.vocab_size - 1)]


def tabled(rows: Tensor) -> Tabled:
    return Tabled(lambda token, position: 0, vocab_size=rows.shape[-1], rows=rows)
