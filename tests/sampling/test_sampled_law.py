"""The law of what is returned is the target's own, at every K, whoever drafted; and wrong rules are found out.

Each check is one chi-square test of the joint law of the first three tokens (or of later ones), with fixed seeds. A
right rule fails one with probability 10^-6 if the seeds were drawn anew; a wrong one must give less than 10^-12.
"""

from __future__ import annotations

import pytest
import torch
from laws import PERIOD, Bulk, joint, p_value, table

from draftline.stages.sampling import noise
from draftline.stages.sampling.choose import choose, choose_after_draft
from draftline.stages.sampling.params import SamplingParams
from draftline.stages.sampling.processors import Scores
from draftline.stages.sampling.sampler import pick

RIGHT, WRONG = 1e-6, 1e-12
V, PROMPT = 6, (0, 3, 1)
TARGET, NEAR = table(V, 1), table(V, 1) + 0.7 * table(V, 2)
COMBINATIONS = {
    "temperature": SamplingParams(temperature=1.0),
    "cold": SamplingParams(temperature=0.6),
    "hot": SamplingParams(temperature=1.7),
    "top_k": SamplingParams(temperature=1.0, top_k=3),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8),
    "min_p": SamplingParams(temperature=1.0, min_p=0.15),
    "all three": SamplingParams(temperature=1.3, top_k=4, top_p=0.9, min_p=0.05),
    "penalties": SamplingParams(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.6, frequency_penalty=0.5),
}
RARER = {  # a slot at a time, so fewer draws
    "bias": SamplingParams(temperature=1.0, logit_bias=((2, 1.5), (4, -100.0))),
    "min_tokens": SamplingParams(temperature=1.0, min_tokens=2, stop_token_ids=(1, 5)),
    "bad_words": SamplingParams(temperature=1.0, bad_words=((3,), (2, 0), (4, 4, 4))),
    "everything": SamplingParams(
        temperature=1.2,
        top_k=5,
        top_p=0.95,
        repetition_penalty=0.8,
        frequency_penalty=-0.4,
        logit_bias=((0, 0.5),),
        min_tokens=1,
        stop_token_ids=(2,),
        bad_words=((1, 1),),
    ),
}


@pytest.mark.parametrize("drawn", [False, True], ids=["likeliest", "drawn"])
@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.parametrize("name", [*COMBINATIONS, *RARER])
def test_first_tokens_have_the_targets_law(name, k, drawn):
    params = COMBINATIONS.get(name) or RARER[name]
    n = 6_000 if name in COMBINATIONS else 2_000
    tokens, stood = Bulk(TARGET, NEAR, params, PROMPT, k, drawn).run(n, 3, first_seed=7)
    assert p_value(tokens, joint(TARGET, params, PROMPT, 3), V) > RIGHT
    assert 0.02 < stood < 0.98  # drafts were accepted and rejected


def test_a_million_draws():
    """One row, with a draft behind it and without one."""
    n = 10**6
    seeds, at = torch.arange(n), torch.full((n,), 5)
    p, q = TARGET[0, 0].double(), NEAR[0, 0].double()
    scores, law = Scores(p.expand(n, -1), None, V), p.softmax(0)
    assert p_value(choose(scores, seeds, at)[:, None], law, V) > RIGHT
    drafts = choose(Scores(q.expand(n, -1), None, V), seeds, at, noise.DRAFT)
    assert p_value(drafts[:, None], q.softmax(0), V) > RIGHT
    tokens = choose_after_draft(scores, seeds, at, drafts, q.softmax(0).float().expand(n, -1))
    assert p_value(tokens[:, None], law, V) > RIGHT
    # As many stand as the two laws have in common: no rule that is right accepts more.
    stood, common = float((tokens == drafts).double().mean()), float(torch.minimum(law, q.softmax(0)).sum())
    assert abs(stood - common) < 5 * (common * (1 - common) / n) ** 0.5


def test_later_tokens_over_the_chunks_edge():
    """K=9 in chunks of 8: drafts nearly as good as the target, so windows are accepted whole; the tenth and eleventh
    token come from the second chunk and from the bonus row."""
    near = TARGET + 0.02 * table(V, 2)
    tokens, stood = Bulk(TARGET, near, SamplingParams(temperature=1.0), PROMPT, 9, True).run(10_000, 11)
    assert stood > 0.9
    now = torch.nn.functional.one_hot(torch.tensor(PROMPT[-1]), V).double()
    for i in range(11):
        chain = TARGET[(len(PROMPT) - 1 + i) % PERIOD].double().softmax(1)  # [from, to]
        pair = (now[:, None] * chain).flatten()
        now = now @ chain
        if i in (7, 8, 9, 10):
            assert p_value(tokens[:, i - 1 : i + 1], pair, V) > RIGHT, i


# -- rules that are wrong ------------------------------------------------------------------------------------------


def resampled_from_p(logits, who, wave, before, drafted=None):
    """Accepts with min(1, p/q), but draws anew from p, not from what q left of it."""
    right = pick(logits, who, wave, before, drafted)
    draft = drafted.window[wave.slots, wave.columns + 1]
    judged = wave.columns < drafted.depth[wave.slots]
    seeds = torch.tensor([who[int(n)].params.seed for n in wave.slots])
    scores = Scores(logits.double(), None, logits.shape[1])
    anew = choose(scores, seeds, wave.positions + 1, noise.RESIDUAL)
    return torch.where(judged & (right != draft), anew, right)


def judged_as_if_drawn(logits, who, wave, before, drafted=None):
    """The likeliest draft, judged by a law that it was not drawn by."""
    return pick(logits, who, wave, before, drafted)


def same_number_every_time(logits, who, wave, before, drafted=None):
    """A generator that is seeded anew for every token."""
    still = type(wave)(wave.slots, torch.zeros_like(wave.positions), wave.columns)
    return pick(logits, who, still, before, drafted)


def draft_is_returned(logits, who, wave, before, drafted=None):
    """Whatever was drafted stands."""
    draft = drafted.window[wave.slots, wave.columns + 1]
    judged = wave.columns < drafted.depth[wave.slots]
    return torch.where(judged, draft, pick(logits, who, wave, before, drafted))


class JudgedByLaw(Bulk):
    """Drafts are the likeliest, and the rule is told that they were drawn."""

    def _window(self, history, size, seeds):
        window, probs = super()._window(history, size, seeds)
        for i in range(self.k):
            window[:, i + 1] = self.drafter[(size - 1 + i) % PERIOD, window[:, i]].argmax(1)
        return window, probs


@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.parametrize(
    ("rule", "bulk"),
    [
        (resampled_from_p, Bulk),
        (judged_as_if_drawn, JudgedByLaw),
        (same_number_every_time, Bulk),
        (draft_is_returned, Bulk),
    ],
)
def test_a_wrong_rule_fails_the_same_check(rule, bulk, k):
    params = SamplingParams(temperature=1.0)
    tokens, _ = bulk(TARGET, NEAR, params, PROMPT, k, True).run(10_000, 3, rule, first_seed=7)
    assert p_value(tokens, joint(TARGET, params, PROMPT, 3), V) < WRONG


def test_a_penalty_that_sees_rejected_drafts_fails_the_same_check():
    params = COMBINATIONS["penalties"]

    def all_drafts_count(logits, who, wave, before, drafted=None):
        last = torch.full_like(wave.columns, before.window.shape[1] - 1)
        return pick(logits, who, type(wave)(wave.slots, wave.positions - wave.columns + last, last), before, drafted)

    tokens, _ = Bulk(TARGET, NEAR, params, PROMPT, 3).run(10_000, 3, all_drafts_count)
    assert p_value(tokens, joint(TARGET, params, PROMPT, 3), V) < WRONG
