"""What a drafter is told that it may propose, draft by draft."""

from __future__ import annotations

import numpy as np
import torch

from draftline.stages.core import Call
from draftline.stages.grammar.course import Course, masked
from draftline.stages.grammar.matcher import Grammars
from draftline.stages.grammar.tokens import tokens_of
from draftline.stages.sampling.params import Grammar, SamplingParams
from draftline.stages.sampling.wire import encode

V, EOS, Q = 260, 256, 64
TOKENS = tokens_of({b: bytes([b]) for b in range(256)}, V, (EOS,))


def inputs(texts: dict[int, tuple[int, bytes, SamplingParams | None]]) -> dict[str, torch.Tensor]:
    """Slots with (prompt tokens, all tokens, parameters)."""
    sampling, history = np.full((4, Q), -1), np.full((4, 32), -1)
    token, position = np.full(4, -1), np.full(4, -1)
    for n, (prompt, text, params) in texts.items():
        history[n, : len(text)] = list(text)
        token[n], position[n] = text[-1], len(text) - 1
        if params is not None:
            row = encode(params, prompt, Q, "here")
            sampling[n, : len(row)] = row
            sampling[n, 0] = 7
    named = {"sampling": sampling, "history": history, "token": token, "position": position}
    return {name: torch.from_numpy(array) for name, array in named.items()}


def may(masks: dict[int, torch.Tensor]) -> dict[int, set[int]]:
    return {n: set(mask.nonzero().flatten().tolist()) for n, mask in masks.items()}


def then(given: dict[str, torch.Tensor], drafts: dict[int, int]) -> dict[str, torch.Tensor]:
    token = given["token"].clone()
    for n, draft in drafts.items():
        token[n] = draft
    return {**given, "token": token}


def test_the_state_follows_the_drafts_of_a_step_and_begins_anew_with_the_next():
    course = Course(Grammars(lambda: TOKENS))
    form = SamplingParams(grammar=Grammar("regex", "ab[0-1]c?"))
    step = inputs({0: (2, b"{{a", form), 1: (2, b"{{", None), 3: (1, b"{", form)})
    assert may(course.masks(Call(iteration=0), step)) == {0: {ord("b")}, 3: {ord("a")}}
    step = then(step, {0: ord("b"), 3: ord("a")})
    assert may(course.masks(Call(iteration=1), step)) == {0: {ord("0"), ord("1")}, 3: {ord("b")}}
    step = then(step, {0: ord("1"), 3: ord("x")})  # nothing is said of what follows a draft that cannot be
    assert may(course.masks(Call(iteration=2), step)) == {0: {ord("c"), EOS}}
    step = then(step, {0: EOS})
    assert may(course.masks(Call(iteration=3), step)) == {0: {EOS}}
    step = inputs({0: (2, b"{{ab", form)})  # the other drafts were rejected
    assert may(course.masks(Call(iteration=0), step)) == {0: {ord("0"), ord("1")}}
    assert course.masks(Call(iteration=0), {**step, "sampling": None}) == {}
    assert course.masks(Call(iteration=1), step) == {}


def test_masked_logits_keep_a_choice_where_the_draft_vocabulary_has_none():
    logits = torch.full((3, V), -torch.inf)
    logits[:, 65:68] = torch.tensor([1.0, 2.0, 3.0])
    allowed, none = torch.zeros(2, V, dtype=torch.bool)
    allowed[65] = allowed[1] = True
    before = logits.clone()
    got = masked(logits, {0: allowed, 2: none})
    assert got.argmax(1).tolist() == [65, 67, 67]
    assert torch.equal(logits, before)
    assert torch.equal(got[2], before[2])
