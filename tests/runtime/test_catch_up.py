"""The MTP layer's own cache is brought up to date with the target's true streams, also when all K were accepted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from engines import SIZES, engine_of, run, tiny_model
from test_lossless import prompt

from draftline.runtime.adaptive import Evidence
from draftline.runtime.engine import Engine
from draftline.runtime.request import Request
from draftline.runtime.running import drive
from draftline.stages.caches.core import ring_length
from draftline.stages.models.core import Rows
from draftline.stages.models.deepseek_v4.model import DeepseekV4Drafter

SIZES_1 = replace(SIZES, max_num_seqs=1)


class Foreseeing:
    """The real MTP layer, its cache and all, whose logits are replaced by ``choose(position of the draft)``."""

    def __init__(self, real: DeepseekV4Drafter, choose) -> None:
        self.real, self.choose, self.cache = real, choose, real.cache
        self.positions: list[int] = []

    def forward(self, rows: Rows, hidden: torch.Tensor) -> torch.Tensor:
        self._last = int(rows.positions.max())
        self.positions.append(int((rows.positions >= 0).sum()))
        return self.real.forward(rows, hidden)

    def logits(self, streams: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor([self.choose(self._last + 2)]), 256).float()

    def greedy(self, streams: torch.Tensor) -> torch.Tensor:
        return self.logits(streams).argmax(-1)


@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.parametrize("right", ["all", "none", "odd positions"])
def test_drafter_cache_holds_the_truth(k, right):
    new, p = 24, prompt(29, 3)
    [truth] = run(
        engine_of(tiny_model(SIZES_1), replace(SIZES_1, num_speculative_tokens=0), "ar.yaml"), [p], new, ignore_eos=True
    )
    text = [*p, *truth.token_ids, *[0] * 20]

    def choose(position: int) -> int:
        good = {"all": True, "none": False, "odd positions": position % 2 == 1}[right]
        return text[position] if good else (text[position] + 1) % 256

    sizes = replace(SIZES_1, num_speculative_tokens=k)
    model = tiny_model(sizes)
    drafter = Foreseeing(model.drafter, choose)
    engine = engine_of(replace(model, drafter=drafter), sizes)
    engine.add(0, Request(tuple(p), new, ignore_eos=True))
    engine.step()
    while len(engine.journal(0)) <= new - k - 3:
        engine.step()
    assert_catches_up(engine, [*p, *engine.journal(0)])


def assert_catches_up(engine: Engine, text: list[int]) -> None:
    """The next step's first draft call leaves the MTP layer's cache as if ``text`` had been one prefilled prompt."""
    bound, _ = engine.prepare_step()
    with torch.inference_mode():
        stage, wave = next(bound.active_runs())
        stage.stage(stage.run.call(wave), stage.inputs, stage.outputs)
    fresh_model = tiny_model(engine.sizes)
    fresh = engine_of(fresh_model, engine.sizes)
    fresh.add(0, Request(tuple(text), 1, ignore_eos=True))
    fresh.admit()
    drive(fresh._filling.fill(fresh.scheduler.by_arrival, len(text)))
    size, done = ring_length(8, fresh_model.geometry), len(text)
    rows = [q % size for q in range(done - 1 - 8, done - 1)]  # all that the next draft can read
    got, want = engine.runtime.model.drafter.cache.window[rows], fresh_model.drafter.cache.window[rows]
    assert want.abs().sum() > 0
    assert (got - want).abs().max() <= 1e-4


@dataclass
class Told:
    """A policy that takes the depths that it was told, in turn."""

    depths: Iterator[int]
    least: list[int] = field(default_factory=list)

    def new(self) -> Evidence:
        return Evidence(0)

    def observe(self, own: Evidence, asked: int, accepted: int) -> None:
        pass

    def choose(self, batch: Sequence[tuple[Evidence, int]], least: int = 0) -> int:
        self.least.append(least)
        return min(next(self.depths), max(cap for _, cap in batch))


@pytest.mark.parametrize("schedule", [(3, 0, 0, 0), (2, 0), (0, 1, 0, 0, 3), (1, 0, 0, 0)])
def test_drafter_cache_holds_the_truth_after_steps_without_drafts(schedule):
    k, p = 3, prompt(29, 3)
    sizes = replace(SIZES_1, num_speculative_tokens=k)
    model = tiny_model(sizes)
    policy = Told(itertools.cycle(schedule))
    engine = engine_of(model, sizes, policy=policy)
    engine.add(0, Request(tuple(p), 60, ignore_eos=True))
    for _ in range(3 * len(schedule)):
        engine.step()
    policy.depths = iter([k])
    [live] = engine.scheduler.live.values()
    assert not engine._catch_up.behind(live)
    # Brought up to date in one call, by rows that waited for it.
    assert_catches_up(engine, [*p, *engine.journal(0)])


def test_a_step_must_draft_before_rows_are_lost():
    """M = K + 1 = 4 rows can wait: the policy is told when all places are taken. If it does not listen, a row is lost
    and all are filled anew; tokens are right in any case."""
    k, p = 3, prompt(29, 3)
    sizes = replace(SIZES_1, num_speculative_tokens=k)
    policy = Told(itertools.chain([1], itertools.repeat(0)))
    [output] = run(engine_of(tiny_model(sizes), sizes, policy=policy), [p], 24, ignore_eos=True)
    accepted = output.counts.accepted[0] if output.counts.accepted else 0
    wanted, waiting = [0], 1 + accepted  # rows of the step that drafted
    spare = 0  # after a fill the first of the rows that wait is in the cache already
    for _ in policy.least[1:]:
        waiting, spare = (1, 1) if waiting > k + 1 + spare else (waiting, spare)
        wanted.append(int(waiting >= k + 1))
        waiting += 1
    wanted[-1] = 0  # the last token: nobody can use a draft
    assert policy.least == wanted
    assert sum(wanted) >= 3
    plain = replace(SIZES_1, num_speculative_tokens=0)
    [truth] = run(engine_of(tiny_model(plain), plain, "ar.yaml"), [p], 24, ignore_eos=True)
    assert output.token_ids == truth.token_ids


@pytest.mark.parametrize("gap", [4, 7, 20])
def test_drafter_cache_holds_the_truth_after_more_steps_than_can_wait(gap):
    """M = 4 rows can wait; what is missing beyond that is filled from the target before it drafts again, and the
    target's own caches are bitwise what they were."""
    sizes, p = replace(SIZES_1, num_speculative_tokens=3), prompt(29, 3)
    model = tiny_model(sizes)
    engine = engine_of(model, sizes)
    engine.add(0, Request(tuple(p), 60, ignore_eos=True))
    engine.step()
    depth, engine.stepping.depth = engine.stepping.depth, lambda live: 0
    for _ in range(gap):
        engine.step()
    engine.stepping.depth = depth
    [live] = engine.scheduler.live.values()
    assert engine._catch_up.behind(live)
    caches = [t for layer in model.target.caches for t in vars(layer).values() if t is not None]
    before = [t.clone() for t in caches]
    drive(engine._filling.fill_missed([live]))
    real = slice(None, -1)  # the last row takes what pad rows write
    assert all(torch.equal(a[real], b[real]) for a, b in zip(caches, before, strict=True))
    assert not engine._catch_up.behind(live)
    assert_catches_up(engine, list(live.tokens))


def test_k_calls_whatever_the_number_of_requests():
    counts = {}
    for requests in (1, 4):
        sizes = replace(SIZES, num_speculative_tokens=3, max_num_seqs=4)
        model = tiny_model(sizes)
        calls = []
        forward = model.drafter.forward
        model.drafter.forward = lambda rows, hidden, f=forward, c=calls: (c.append(len(rows.tokens)), f(rows, hidden))[
            1
        ]
        engine = engine_of(model, sizes)
        for i in range(requests):
            engine.add(i, Request(tuple(prompt(12, i)), 40, ignore_eos=True))
        engine.step()
        calls.clear()
        engine.step()
        counts[requests] = calls[:]
    assert counts[1] == counts[4] == [4 * 4, 4, 4]  # rows: N·(K+1) to catch up, then N each
