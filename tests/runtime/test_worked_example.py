"""DESIGN §5's worked example, and what must hold for any drafter, with scripted models."""

from __future__ import annotations

import pytest
from engines import run, scripted_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, Wilful


def plus_one(token: int, position: int) -> int:
    return token + 1


def test_worked_example():
    """T=8, K=9: a's drafts all match; b's third draft is wrong. Waves {a}, {b}, then {a} alone, two rows wide."""

    def draft(token: int, position: int) -> int:
        return 99 if token == 21 else token + 1

    target, drafter = Scripted(plus_one), Wilful(draft)
    engine = scripted_engine(target, drafter, num_speculative_tokens=9, max_num_seqs=2, prefill_tile=128)
    # Prompts of 100 tokens end in the tail at position 99.
    outputs = run(engine, [[1] * 98 + [8, 9], [1] * 98 + [18, 19]], max_new_tokens=50, ignore_eos=True)
    decode = target.calls[2:]  # two prefill calls of 128 rows hold the 198 prompt rows
    assert sum(len(c) for c in target.calls[:2]) == 198
    first = [list(call) for call in decode[:3]]
    assert first[0] == [(0, 99 + i, 9 + i) for i in range(8)]
    assert first[1] == [(1, 99 + i, t) for i, t in enumerate([19, 20, 21, 99, 100, 101, 102, 103])]
    assert first[2] == [(0, 107, 17), (0, 108, 18)]
    # Step 2 starts from the new tails: 19 at 109 and 22 at 102.
    assert decode[3][0] == (0, 109, 19)
    assert decode[4][0] == (1, 102, 22)
    assert list(outputs[0].token_ids[:10]) == list(range(10, 20))
    assert list(outputs[1].token_ids[:3]) == [20, 21, 22]
    assert engine.num_free_pages == engine.sizes.geometry().num_pages


DRAFTERS = {
    "always right": lambda token, position: token + 1,
    "always wrong": lambda token, position: token + 2,
    "right until 2": lambda token, position: token + 1 if position % 5 < 2 else 0,
    "random": lambda token, position: (token * 2654435761 + position * 40503) % 127,
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("k", [1, 3, 7, 9, 16])
def test_an_adversarial_drafter_changes_speed_never_tokens(name, k):
    def next_token(token: int, position: int) -> int:
        return (token * 7 + position + 1) % 120

    prompts = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5], list(range(40))]
    plain = run(scripted_engine(Scripted(next_token), None, "ar.yaml", num_speculative_tokens=0), prompts, 33)
    drafter = Wilful(DRAFTERS[name] if name != "always right" else lambda t, p: next_token(t, p))
    fast = run(scripted_engine(Scripted(next_token), drafter, num_speculative_tokens=k), prompts, 33)
    assert [o.token_ids for o in fast] == [o.token_ids for o in plain]
    assert [o.finish_reason for o in fast] == [o.finish_reason for o in plain]
    for o in fast:
        assert 0 <= o.counts.num_accepted_tokens <= o.counts.num_draft_tokens
        if name == "always right" and len(o.prompt) > 1:
            assert o.counts.num_accepted_tokens == o.counts.num_draft_tokens
            assert o.counts.steps == -(-33 // (k + 1))
        if name == "always wrong":
            assert o.counts.steps >= 30


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    wanted=st.integers(1, 40),
    k=st.integers(0, 12),
    tile=st.sampled_from([8, 16]),
    seed=st.integers(0, 1000),
    limit=st.integers(31, 48),
)
def test_context_and_length_limits(lengths, wanted, k, tile, seed, limit):
    """No row beyond the context, exactly the tokens that fit, whatever K; K_eff differs within the batch."""

    def next_token(token: int, position: int) -> int:
        return (token * 31 + position * 17 + seed) % 110

    prompts = [[(seed + i + j) % 110 for j in range(n)] for i, n in enumerate(lengths)]
    target = Scripted(next_token)
    drafter = Wilful(lambda t, p: next_token(t, p) if (t + p) % 3 else 0)
    engine = scripted_engine(target, drafter, num_speculative_tokens=k, tile=tile, max_model_len=limit, max_num_seqs=3)
    outputs = run(engine, prompts, wanted)
    for prompt, output in zip(prompts, outputs, strict=True):
        token, expect = prompt[-1], []
        for i in range(min(wanted, limit - len(prompt))):
            token = next_token(token, len(prompt) - 1 + i)
            expect.append(token)
        assert list(output.token_ids) == expect
        assert output.finish_reason == ("length" if len(expect) == wanted else "context")
    assert all(0 <= p < limit for call in target.calls for _, p, _ in call)
    assert engine.num_free_pages == engine.sizes.geometry().num_pages


def test_exhausted_context_takes_a_zero_draft_step():
    """The published example: context 130, tokens 128 and 125, K=9; one request has room for fewer drafts."""
    target, drafter = Scripted(plus_one), Wilful(plus_one)
    engine = scripted_engine(
        target, drafter, num_speculative_tokens=9, max_model_len=130, max_num_seqs=2, prefill_tile=128
    )
    outputs = run(engine, [[1] * 129, [1] * 126], max_new_tokens=50)
    assert [len(o.token_ids) for o in outputs] == [1, 4]
    assert [o.finish_reason for o in outputs] == ["context", "context"]
    assert [o.counts.num_draft_tokens for o in outputs] == [0, 3]  # K_eff = 0 beside K_eff = 3
    assert [o.counts.steps for o in outputs] == [1, 1]


def test_a_stop_token_inside_the_accepted_run_cuts_there():
    from dataclasses import replace

    from engines import SIZES, engine_of
    from scripted import loaded

    sizes = replace(SIZES, num_speculative_tokens=7)
    model = loaded(Scripted(plus_one), Wilful(plus_one), sizes.geometry(), eos=(13,))
    [output] = run(engine_of(model, sizes), [[9, 10]], 50)
    assert output.token_ids == (11, 12, 13)
    assert output.finish_reason == "stop"
    assert (output.counts.num_accepted_tokens, output.counts.tokens) == (3, 3)
    assert output.counts.mean_acceptance_length == 3.0
