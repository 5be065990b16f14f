"""Adaptive depth: the choice against brute force, its regret in simulation, and that it changes no token."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from engines import SIZES, engine_of, run, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lossless import prompt

from draftline.graph.errors import PlanError, UsageError
from draftline.runtime.adaptive import Chunks, DepthPolicy, Evidence, StepCost, between
from draftline.runtime.pipeline import depth_policy, open_pipeline, prepare


def linear(first: float, each: float, k: int) -> list[StepCost]:
    """Steps of one request that cost ``first`` and ``each`` more per draft."""
    return [StepCost(depth, 1, first + each * depth) for depth in range(k + 1)]


def expected_tokens(chances: list[float], k: int) -> float:
    """By enumeration of all 2^k outcomes."""
    total = 0.0
    for outcome in itertools.product([True, False], repeat=k):
        weight = np.prod([c if ok else 1 - c for c, ok in zip(chances, outcome, strict=False)])
        total += weight * (1 + next((i for i, ok in enumerate(outcome) if not ok), k))
    return total


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=5),
    st.floats(0.01, 1.0),
    st.integers(0, 6),
)
def test_the_choice_is_the_best_rate_by_enumeration(counts, each, cap):
    policy = DepthPolicy(linear(1.0, each, len(counts)), len(counts))
    own = policy.new()
    own.judged = [float(a + b) for a, b in counts]
    own.stood = [float(a) for a, _ in counts]
    reaches = policy.reaches(own)
    chances = [b / a for a, b in itertools.pairwise([1.0, *reaches])]
    rates = [expected_tokens(chances, k) / (1.0 + each * k) for k in range(min(cap, len(counts)) + 1)]
    assert rates[policy.choose([(own, cap)])] == pytest.approx(max(rates), rel=1e-9)


def test_by_hand():
    """One draft costs 0.3 of a plain step; it pays if it stands more often than that."""
    policy = DepthPolicy(linear(1.0, 0.3, 1), 1)
    seldom, often = policy.new(), policy.new()
    for i in range(200):
        seldom.add(1, int(i % 5 == 0), 1.0)
        often.add(1, int(i % 2 == 0), 1.0)
    # 200 steps of its own and 8 of the prior 0.7: (40 + 5.6) / 208 = 0.22 and (100 + 5.6) / 208 = 0.51
    assert policy.reaches(seldom) == pytest.approx([45.6 / 208])
    assert policy.choose([(seldom, 1)]) == 0
    assert policy.choose([(often, 1)]) == 1
    assert policy.choose([(seldom, 1)], least=1) == 1
    assert policy.choose([(often, 0)]) == 0
    # Together: 2 + 0.22 + 0.51 tokens for 1.3 in place of 2 for 1.
    assert policy.choose([(seldom, 1), (often, 1)]) == 1


def test_a_draft_behind_a_rejected_one_is_not_judged():
    own = Evidence(3)
    own.add(3, 1, 1.0)
    assert (own.judged, own.stood) == ([1.0, 1.0, 0.0], [1.0, 0.0, 0.0])


def test_chunks_cost_what_they_are_expected_to():
    """K=3 in chunks of two columns: the second runs if the target accepts drafts 1 and 2."""
    costs = [StepCost(k, 1, 10.0) for k in range(4)]
    chunks = [Chunks(), Chunks(), Chunks((2,), 1, 8.0, 2.0), Chunks((2,), 1, 8.0, 2.0)]
    policy = DepthPolicy(costs, 3, chunks)
    own = policy.new()
    p = policy.reaches(own)
    assert policy._micros(3, [p], [3]) == pytest.approx(10 + p[1] * 10)
    assert policy._micros(3, [p], [1]) == 10.0
    assert policy._micros(3, [p, p], [3, 3]) == pytest.approx(20 + 2 * p[1] * 8 + min(2 * p[1], 1) * 2)


def test_costs_between_measured_numbers_of_requests():
    known = [(1, 10.0), (4, 16.0)]
    assert [between(known, n) for n in (1, 2, 4, 8)] == [10.0, 12.0, 16.0, 32.0]


def test_a_depth_without_a_cost_is_refused():
    with pytest.raises(PlanError, match="K=2"):
        DepthPolicy(linear(1, 1, 1), 2)


def simulate(policy: DepthPolicy, chances, costs, steps: int, rng, m: int) -> tuple[float, float]:
    """(tokens, time) of a text whose drafts stand with ``chances``, as the engine would run it: a step must draft
    before more than ``m`` rows wait."""
    own, tokens, spent, waiting = policy.new(), 0, 0.0, 1
    for _ in range(steps):
        k = policy.choose([(own, policy.k_max)], least=int(waiting >= m))
        stood = rng.random(k) < chances[:k]
        accepted = int(np.argmin(stood)) if not stood.all() else k
        policy.observe(own, k, accepted)
        waiting = accepted + 1 if k else waiting + 1
        tokens, spent = tokens + accepted + 1, spent + costs[k]
    return tokens, spent


# Shares of a step of SmolLM2 in bf16 on two cores: eight rows, then 0.06 of them per draft.
COSTS = [1.0] + [1.0 + 0.03 + 0.06 * k for k in range(1, 8)]


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_close_to_the_best_fixed_depth(chance, decay):
    """Within 3 % of the best fixed depth, and of plain decoding within 2 %, over ten texts of 200 steps."""
    chances = np.array([chance * decay**i for i in range(7)])
    best = max(expected_tokens(list(chances), k) / COSTS[k] for k in range(8))
    policy = DepthPolicy([StepCost(k, 1, c) for k, c in enumerate(COSTS)], 7)
    rng = np.random.default_rng(5)
    runs = [simulate(policy, chances, COSTS, 200, rng, 8) for _ in range(10)]
    rate = sum(t for t, _ in runs) / sum(s for _, s in runs)
    assert rate >= 0.97 * best
    assert rate >= 0.98 * 1.0


def test_it_follows_a_change():
    """Drafts that never stand for 300 steps, then always do: deep again within 60 steps, at every draft's price."""
    policy = DepthPolicy([StepCost(k, 1, c) for k, c in enumerate(COSTS)], 7)
    rng = np.random.default_rng(1)
    simulate(policy, np.zeros(7), COSTS, 300, rng, 8)
    simulate(policy, np.ones(7), COSTS, 60, rng, 8)
    assert policy.choose([(policy.new(), 7)]) == 7


def recorded(tmp_path, k: int, requests=(1, 4), each: float = 0.1):
    """A file of measurements, made up."""
    steps = [asdict(StepCost(d, n, 1000.0 * n**0.5 * (1 + each * d))) for d in range(k + 1) for n in requests]
    entry = {"stage": "verify", "width": 8, "micros": 900.0, "source": "measured"}
    record = {"max_num_seqs": max(requests), "k_max": k, "entries": [entry], "steps": steps}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"format": 1, "of": {"machine": "made up"}, "records": [record]}))
    return str(path)


PROMPTS = ["def read_lines(path):", "class Stack:", "x = [1, 2, 3]\ny = [1, 2"]


@pytest.mark.parametrize(
    ("graph", "runtime", "each"),
    [
        ("mtp.yaml", "inline", 0.1),
        ("mtp.yaml", "inline", 3.0),
        ("ngram.yaml", "inline", 0.1),
        ("mtp-zmq.yaml", "zmq", 0.1),
    ],
)
def test_adaptive_depth_changes_no_token(tmp_path, graph, runtime, each):
    with open_pipeline("ar.yaml", max_num_seqs=1) as pipeline:
        plain = [o.token_ids for o in pipeline.generate(PROMPTS, max_new_tokens=40, ignore_eos=True)]
    costs = recorded(tmp_path, 5, each=each)
    wishes = {"num_speculative_tokens": "auto:5", "max_num_seqs": 2, "runtime": runtime}
    with open_pipeline(graph, costs=costs, **wishes) as pipeline:
        outputs = pipeline.generate(PROMPTS, max_new_tokens=40, ignore_eos=True)
        captured = [engine.runtime.captures for engine in pipeline.engines]
        again = pipeline.generate(PROMPTS, max_new_tokens=40, ignore_eos=True)
        assert [engine.runtime.captures for engine in pipeline.engines] == captured
    assert [o.token_ids for o in outputs] == [o.token_ids for o in again] == plain
    proposed = sum(o.counts.num_draft_tokens for o in outputs)
    steps = sum(o.counts.steps for o in outputs)
    assert 0 < proposed <= 5 * steps
    if each == 3.0:  # a draft costs three steps: hardly ever worth it, but now and then one is made
        assert proposed < steps / 2


def test_adaptive_depth_on_packed_layouts_changes_no_token(tmp_path):
    with open_pipeline("ar.yaml", max_num_seqs=1) as pipeline:
        plain = [o.token_ids for o in pipeline.generate(PROMPTS, max_new_tokens=24, ignore_eos=True)]
    wishes = {"num_speculative_tokens": "auto:5", "max_num_seqs": 3, "layouts": "packed"}
    with open_pipeline("mtp.yaml", costs=recorded(tmp_path, 5), **wishes) as pipeline:
        outputs = pipeline.generate(PROMPTS, max_new_tokens=24, ignore_eos=True)
    assert [o.token_ids for o in outputs] == plain
    assert sum(o.counts.num_draft_tokens for o in outputs) > 0


@pytest.mark.parametrize("k", [3, 9])
def test_every_schedule_of_depths_gives_the_same_tokens(k):
    """A policy that draws depths at random: any sequence of plans is lossless, whoever shares the batch."""

    class Random(DepthPolicy):
        def choose(self, batch, least=0):
            return int(rng.integers(min(max(cap for _, cap in batch), self.k_max) + 1))

    rng = np.random.default_rng(k)
    sizes = replace(SIZES, num_speculative_tokens=k)
    prompts = [prompt(n, n) for n in (5, 17, 40, 9)]
    policy = Random(linear(1, 1, k), k)
    got = run(engine_of(tiny_model(sizes), sizes, policy=policy), prompts, 40, ignore_eos=True)
    plain = replace(SIZES, num_speculative_tokens=0, max_num_seqs=1)
    want = run(engine_of(tiny_model(plain), plain, "ar.yaml"), prompts, 40, ignore_eos=True)
    assert [o.token_ids for o in got] == [o.token_ids for o in want]


def test_the_policy_of_a_deployment_knows_its_chunks(tmp_path):
    prepared = prepare("mtp.yaml", num_speculative_tokens="auto:9", costs=recorded(tmp_path, 9), max_num_seqs=2)
    chunks = depth_policy(prepared)._chunks
    assert [c.starts for c in chunks[:8]] == [()] * 8
    assert chunks[9].starts == (8,)
    assert chunks[9].wave == 900.0


@pytest.mark.parametrize("wish", ["auto:0", "auto:", "automatic", "auto:-1", "-1", "", 2.5, True, "3"])
def test_wishes_that_are_no_depth(wish):
    with pytest.raises(UsageError, match="auto:N"):
        prepare("mtp.yaml", num_speculative_tokens=wish)


def test_assumed_costs_cannot_choose():
    with pytest.raises(UsageError, match="auto"):
        prepare("mtp.yaml", num_speculative_tokens="auto", costs="assumed")


def test_a_file_that_is_not_deep_enough(tmp_path):
    with pytest.raises(UsageError, match="K=7"):
        prepare("mtp.yaml", num_speculative_tokens="auto", costs=recorded(tmp_path, 3))
