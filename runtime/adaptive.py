"""Adaptive depth: how many drafts the next step should propose.

Knows: which drafts stood so far, what a step costs per depth. Does not know: tokens, plans, how a cost was measured.

The chosen K has the most expected tokens per microsecond. Draft i is accepted with the chance a_i, given that all
drafts before it were, so a step of K drafts gives 1 + Σ_{k≤K} Π_{i≤k} a_i tokens (Leviathan et al. 2023,
arXiv:2211.17192, equation 1, with a chance per position). The choice changes how long a step takes, never a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from draftline.graph.errors import PlanError

PRIOR = 0.7
"""Chance of a first draft that nobody has seen judged yet. Optimistic: what is not tried cannot be learnt."""
PRIOR_WEIGHT = 2.0
"""Steps that the chance at the position before counts for, where a position's own steps are few."""
OVERALL_WEIGHT = 8.0
"""Steps that all requests together count for in the estimate of one."""
OVERALL_KEPT, OWN_KEPT = 0.99, 0.95
"""What a step's evidence still counts after the next one. Evidence fades also at depths that are not tried, so these
are tried again after some hundred steps."""


@dataclass(frozen=True)
class StepCost:
    """A decode step of ``requests`` requests at depth ``depth`` takes ``micros`` microseconds."""

    depth: int
    requests: int
    micros: float


@dataclass(frozen=True)
class Chunks:
    """What the chunks after the first of a plan add: their first columns, requests per wave, and the microseconds of a
    wave and of starting a chunk."""

    starts: tuple[int, ...] = ()
    lanes: int = 1
    wave: float = 0.0
    chunk: float = 0.0


class Evidence:
    """Per position how often a draft was judged and how often it stood, fading."""

    def __init__(self, k: int) -> None:
        self.judged, self.stood = [0.0] * k, [0.0] * k

    def add(self, asked: int, accepted: int, kept: float) -> None:
        """One step that asked for ``asked`` drafts, of which the first ``accepted`` stood. A draft behind a rejected
        one was not judged; one that the drafter could not find counts as rejected."""
        for i in range(len(self.judged)):
            self.judged[i] *= kept
            self.stood[i] *= kept
            if i < asked and i <= accepted:
                self.judged[i] += 1.0
                self.stood[i] += i < accepted


class Policy(Protocol):
    """Who chooses K. Called by the engine."""

    def new(self) -> Evidence:
        """The evidence of a new request: none."""

    def observe(self, own: Evidence, asked: int, accepted: int) -> None:
        """A step of one request is done: of ``asked`` drafts the first ``accepted`` stood."""

    def choose(self, batch: Sequence[tuple[Evidence, int]], least: int = 0) -> int:
        """K for a step over ``batch``: each request's evidence, and the most drafts that it can use. ``least``: a
        smaller K is not wanted."""


class DepthPolicy:
    """The K of the most expected tokens per microsecond, by the running acceptance."""

    def __init__(self, costs: Sequence[StepCost], k_max: int, chunks: Sequence[Chunks] = ()) -> None:
        """``chunks[K]``: of the plan for K, where plans have more than one. Raises PlanError if a depth up to ``k_max``
        has no cost."""
        self.k_max = k_max
        self._costs = {k: sorted((c.requests, c.micros) for c in costs if c.depth == k) for k in range(k_max + 1)}
        for k, known in self._costs.items():
            if not known:
                raise PlanError(f"adaptive depth: no step cost was measured at K={k}; run pipeline-run --calibrate")
        self._chunks = tuple(chunks) or (Chunks(),) * (k_max + 1)
        self.overall = Evidence(k_max)

    def new(self) -> Evidence:
        return Evidence(self.k_max)

    def observe(self, own: Evidence, asked: int, accepted: int) -> None:
        own.add(asked, accepted, OWN_KEPT)
        self.overall.add(asked, accepted, OVERALL_KEPT)

    def reaches(self, own: Evidence) -> list[float]:
        """Per draft the chance that it and all before it are accepted."""
        out, overall, product = [], PRIOR, 1.0
        for i in range(self.k_max):
            judged, stood = self.overall.judged[i], self.overall.stood[i]
            overall = (stood + PRIOR_WEIGHT * overall) / (judged + PRIOR_WEIGHT)
            product *= (own.stood[i] + OVERALL_WEIGHT * overall) / (own.judged[i] + OVERALL_WEIGHT)
            out.append(product)
        return out

    def choose(self, batch: Sequence[tuple[Evidence, int]], least: int = 0) -> int:
        """As ``Policy.choose``; the smallest of equals."""
        deepest = min(max((cap for _, cap in batch), default=0), self.k_max)
        gained, cap_of = [1.0 * len(batch)], [cap for _, cap in batch]
        reaches = [self.reaches(own) for own, _ in batch]
        for k in range(deepest):
            gained.append(gained[-1] + sum(r[k] for r, cap in zip(reaches, cap_of, strict=True) if k < cap))
        rates = [gained[k] / self._micros(k, reaches, cap_of) for k in range(deepest + 1)]
        first = min(least, deepest)
        return first + rates[first:].index(max(rates[first:]))

    def _micros(self, k: int, reaches: Sequence[Sequence[float]], caps: Sequence[int]) -> float:
        """Microseconds of a step at depth ``k``: as measured, with every chunk after the first as often as it runs."""
        total, c = between(self._costs[k], len(caps)), self._chunks[k]
        for start in c.starts:
            # A chunk that starts at column s runs for whoever the target accepted drafts 1 … s of.
            live = sum(r[start - 1] for r, cap in zip(reaches, caps, strict=True) if start <= cap)
            total += c.wave * max(live / c.lanes, min(live, 1.0)) + c.chunk * min(live, 1.0)
        return total


def between(known: Sequence[tuple[int, float]], requests: int) -> float:
    """The cost at a number of requests, linear between those measured and in proportion beyond the largest."""
    for (a, low), (b, high) in pairwise(known):
        if a <= requests <= b:
            return low + (high - low) * (requests - a) / (b - a)
    n, micros = known[0] if requests < known[0][0] else known[-1]
    return micros * max(requests / n, 1.0)
