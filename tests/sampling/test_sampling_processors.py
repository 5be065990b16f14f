"""Scores against Hugging Face's processors, and by hand where it has none."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import law, table

from draftline.stages.sampling.params import SamplingParams
from draftline.stages.sampling.processors import FEW, OUT, keep_top
from draftline.stages.sampling.sampler import Before, WaveRows, narrow, pick, shape
from draftline.stages.sampling.wire import decode, encode, tenant

V = 40
ROWS = table(V, 5, spread=2.0)


@st.composite
def cases(draw):
    token = st.integers(0, V - 1)
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.3, 1.0, 2.5])),
        top_k=draw(st.sampled_from([-1, 0, 1, 7, V, 2 * V])),
        top_p=draw(st.sampled_from([1e-6, 0.5, 0.93, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.05, 1.0])),
        repetition_penalty=draw(st.sampled_from([0.7, 1.0, 1.8])),
        presence_penalty=draw(st.sampled_from([-2.0, 0.0, 0.4])),
        frequency_penalty=draw(st.sampled_from([0.0, 1.5])),
        logit_bias=tuple(draw(st.dictionaries(token, st.sampled_from([-100.0, 2.5]), max_size=3)).items()),
        min_tokens=draw(st.integers(0, 4)),
        stop_token_ids=tuple(draw(st.lists(token, max_size=3))),
        bad_words=tuple(tuple(w) for w in draw(st.lists(st.lists(token, min_size=1, max_size=3), max_size=3))),
    )
    tokens = draw(st.lists(st.integers(0, 5), min_size=2, max_size=9))
    prompt = draw(st.integers(1, len(tokens) - 1))
    column = draw(st.integers(0, min(len(tokens) - prompt, 3)))
    return params, tuple(tokens[:prompt]), tuple(tokens[prompt:]), column


@settings(max_examples=300, deadline=None)
@given(cases())
def test_a_rows_law_is_that_of_hugging_faces_processors(case):
    """Whether the tokens before the row are committed or in the window, columns 1 … ``column``."""
    params, prompt, made, column = case
    known, position = [*prompt, *made], len(prompt) + len(made) - 1
    tail = position - column
    history = torch.full((2, 32), -1)
    history[1, : tail + 1] = torch.tensor(known[: tail + 1])
    window = torch.zeros(2, column + 1, dtype=torch.int64)
    window[1] = torch.tensor(known[tail:])
    # What travels: the parameters are read from words.
    who = [decode(encode(params, len(prompt), 1024, "x"))]
    rows = WaveRows(torch.tensor([1]), torch.tensor([position]), torch.tensor([column]))
    x = ROWS[position % 3, known[-1]][None].double()
    got = narrow(shape(x, who, rows, Before(history, window)), who).dense().softmax(1)[0]
    torch.testing.assert_close(got, law(ROWS, params, prompt, made), rtol=1e-9, atol=1e-12)


def test_the_token_that_crosses_p_stays():
    x = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()[None]

    def kept(p: float) -> list[int]:
        dense = keep_top(x, torch.tensor([0]), torch.tensor([p], dtype=torch.float64)).dense()
        return (dense[0] > OUT).nonzero()[:, 0].tolist()

    assert [kept(p) for p in (0.01, 0.49, 0.6, 0.79, 0.81, 0.96, 1.0)] == [
        [0],
        [0],
        [0, 1],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    ]


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 6.0])
@pytest.mark.parametrize("levels", [0, 4])
def test_top_p_of_a_large_vocabulary_is_that_of_a_sort(spread, levels):
    """Peaked or flat, and with equals at the edge: what is kept is the plain definition's."""
    vocab = 4 * FEW + 5
    x = torch.randn(3, vocab, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * spread
    x = (x * levels).round() / levels if levels else x
    p = torch.tensor([0.3, 0.9, 0.999], dtype=torch.float64)
    got = keep_top(x, torch.zeros(3, dtype=torch.int64), p).dense()
    for row in range(3):
        order = sorted(range(vocab), key=lambda i: (-float(x[row, i]), i))
        mass = x[row].softmax(0)[order].cumsum(0)
        want = order[: int((mass < p[row] - 1e-12).sum()) + 1]
        assert (got[row] > OUT).nonzero()[:, 0].tolist() == sorted(want)


def test_rows_with_and_without_limits_in_one_call():
    x = torch.randn(4, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    k, p = torch.tensor([3, 0, 0, 10]), torch.tensor([1.0, 0.5, 1.0, 0.7], dtype=torch.float64)
    together = keep_top(x, k, p).dense()
    for r in range(4):
        assert torch.equal(together[r], keep_top(x[r : r + 1], k[r : r + 1], p[r : r + 1]).dense()[0])
    assert (together[0] > OUT).sum() == 3
    assert (together[2] > OUT).all()


def test_greedy_rows_get_the_likeliest_token_whatever_their_neighbours_are():
    """Also of equals: the first, as ``greedy`` has it."""
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(2)).round()
    wave = WaveRows(torch.arange(6), torch.full((6,), 9), torch.zeros(6, dtype=torch.int64))
    hot = {n: tenant(1, SamplingParams(temperature=3.0, seed=n), 4) for n in (1, 4)}
    cold = {n: tenant(1, SamplingParams(logit_bias=((7, 0.0),)), 4) for n in (2, 3)}
    got = pick(logits, {**hot, **cold}, wave, Before(None, None))
    for r in (0, 2, 3, 5):
        assert int(got[r]) == int(logits[r].argmax())
    alone = pick(logits[4:5], hot, wave.at([4]), Before(None, None))
    assert int(got[4]) == int(alone)


def test_a_mask_of_allowed_tokens_comes_first():
    logits = torch.randn(5, 20, generator=torch.Generator().manual_seed(2))
    allowed = torch.rand(5, 20, generator=torch.Generator().manual_seed(3)) < 0.2
    allowed[:, 13] = True
    wave = WaveRows(torch.arange(5), torch.full((5,), 9), torch.zeros(5, dtype=torch.int64))
    for seed in range(50):
        who = {n: tenant(1, SamplingParams(temperature=5.0, seed=seed, top_k=2), 4) for n in range(5)}
        got = pick(logits, who, wave, Before(None, None), allowed=allowed)
        assert all(bool(allowed[r, t]) for r, t in enumerate(got.tolist()))


def test_parameters_survive_the_wire():
    r = random.Random(1)
    params = SamplingParams(
        temperature=0.1 + 0.2,
        top_k=5,
        seed=2**64 - 1,
        logit_bias=tuple((i, r.uniform(-100, 100)) for i in range(300)),
        bad_words=((1, 2, 3), (4,)),
        stop_token_ids=(3,),
        logprobs=0,
    )
    got = decode(encode(params, 77, 1024, "x"))
    assert got.params == params
    assert got.prompt == 77
