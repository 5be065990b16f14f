"""Structured output with a scripted target and wilful drafts, over tiny-v4's vocabulary: whatever is drafted, wanted or
forbidden besides."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from engines import SIZES, engine_of
from scripted import Scripted, Wilful, loaded
from untold import untold

from draftline.graph.errors import RequestError
from draftline.runtime.ends import NOTHING_LEFT
from draftline.runtime.engine import Engine
from draftline.runtime.replicas import generate
from draftline.runtime.request import Request
from draftline.runtime.text import Text
from draftline.stages.grammar.matcher import Grammars
from draftline.stages.grammar.tokens import read_tokens
from draftline.stages.models.places import resolve
from draftline.stages.sampling.params import Grammar, SamplingParams

EOS = 1
TEXT = Text(resolve("tiny-v4"))
TOKENS = read_tokens(resolve("tiny-v4"), 4096, (EOS,))
BYTE = {text: i for i, text in TOKENS.text.items() if len(text) == 1}
JUNK = BYTE[b"#"]


def ids(text: str) -> tuple[int, ...]:
    return tuple(BYTE[bytes([b])] for b in text.encode())


def script(text: str, prompt: int):
    """Says the bytes of ``text`` after a prompt, then the end."""
    said = [*ids(text), EOS]
    return lambda token, position: said[min(position + 1 - prompt, len(said) - 1)]


def engine(target, drafts, k: int, eos: tuple[int, ...] = (EOS,), masks: bool = False) -> Engine:
    """Its drafter drafts what it will; with ``masks``, only what can follow."""
    wanted = replace(SIZES, num_speculative_tokens=k)
    model = loaded(Scripted(target, vocab_size=4096), Wilful(drafts, vocab_size=4096), wanted.geometry(), eos)
    tokens = read_tokens(resolve("tiny-v4"), 4096, eos)
    model = replace(model, grammars=Grammars(lambda: tokens))
    made = engine_of(model, wanted, "mtp.yaml" if masks else untold())
    made._sampled = replace(made._sampled, text=TEXT)
    return made


PROMPT = ids("{{{")
SAYS = script("ab12", len(PROMPT))
DRAFTERS = {
    "right": SAYS,
    "outside": lambda token, position: JUNK,
    "ends early": lambda token, position: EOS,
    "right, then outside": lambda t, p: SAYS(t, p) if p % 3 else JUNK,
    "goes on behind the end": script("ab12", len(PROMPT) - 1),
}


@pytest.mark.parametrize("k", [0, 1, 3, 9])
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("name", DRAFTERS)
def test_whatever_is_drafted_the_text_is_the_same(name, masks, k):
    made = engine(SAYS, DRAFTERS[name], k, masks=masks)
    for temperature in (0.0, 0.01):
        params = SamplingParams(grammar=Grammar("regex", "[a-c]+[0-9]{2,4}"), temperature=temperature)
        [output] = generate([made], [Request(PROMPT, 20, sampling=params)])
        assert output.token_ids == (*ids("ab12"), EOS)
        assert output.finish_reason == "stop"
        if name == "outside" and not masks:
            assert output.counts.num_accepted_tokens == 0
        if name == "right" and k == 9:
            assert output.counts.steps == 1


@pytest.mark.parametrize("k", [0, 1, 3, 9])
def test_a_target_that_wants_out_is_kept_in(k):
    """The first token, each bonus token and the end, which nobody says, are the grammar's."""
    made = engine(lambda token, position: JUNK, lambda token, position: JUNK, k)
    [output] = generate(
        [made], [Request(PROMPT, 20, sampling=SamplingParams(grammar=Grammar("regex", "a[b]c(?:de)+!")))]
    )
    assert re.fullmatch("abc(?:de)+!?", TEXT.decode(output.token_ids))
    choice = Grammar("choice", '["abcdefgh"]')
    [output] = generate([made], [Request(PROMPT, 20, sampling=SamplingParams(grammar=choice))])
    assert TEXT.decode(output.token_ids) == "abcdefgh"
    assert output.finish_reason == "stop"


@pytest.mark.parametrize("k", [0, 3, 9])
def test_an_end_inside_the_accepted_run_is_the_last(k):
    """Also where the drafter goes on in the grammar's own words."""
    says = script("12", len(PROMPT))
    made = engine(says, lambda t, p: EOS if p + 1 - len(PROMPT) == 2 else BYTE[b"1"] if p > 5 else says(t, p), k)
    deltas = []
    numbers = SamplingParams(grammar=Grammar("regex", "[0-9]+"))
    [output] = generate([made], [Request(PROMPT, 20, sampling=numbers)], deltas.append)
    assert output.token_ids == tuple(t for d in deltas for t in d.token_ids) == (*ids("12"), EOS)
    assert output.counts.tokens == 3


@pytest.mark.parametrize("k", [0, 3, 9])
def test_several_ends_and_ends_that_are_ignored(k):
    other = 0
    ends = (EOS, other)
    says = script("12", len(PROMPT))
    numbers = SamplingParams(grammar=Grammar("regex", "[0-9]{2}"))
    made = engine(lambda t, p: other if says(t, p) == EOS else says(t, p), says, k, ends)
    [output] = generate([made], [Request(PROMPT, 20, sampling=numbers)])
    assert output.token_ids == (*ids("12"), other)
    [output] = generate([made], [Request(PROMPT, 7, ignore_eos=True, sampling=numbers)])
    assert output.token_ids == (*ids("12"), *[other] * 5)  # what is over stays over


@pytest.mark.parametrize("k", [0, 3, 9])
@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"min_tokens": 5}, "qz"),
        ({"bad_words": ((BYTE[b"q"],), tuple(ids("qz")))}, ""),
        ({"bad_words": (tuple(ids("qz")),)}, "q"),
        ({"min_tokens": 5, "temperature": 1.0, "top_p": 0.5, "repetition_penalty": 1.2, "logprobs": 2}, "qz"),
    ],
)
def test_where_nothing_is_left_that_request_ends_and_no_other_notices(params, kept, k):
    made = engine(SAYS, SAYS, k)
    good = Request(PROMPT, 20, sampling=SamplingParams(grammar=Grammar("regex", "[a-c]+[0-9]{2,4}"), temperature=0.01))
    bad = Request(PROMPT, 20, sampling=SamplingParams(**{"grammar": Grammar("regex", "qz"), **params}))
    outputs = generate([made], [good, bad, good])
    assert [o.token_ids for o in outputs] == [(*ids("ab12"), EOS), ids(kept), (*ids("ab12"), EOS)]
    assert [o.finish_reason for o in outputs] == ["stop", "error", "stop"]
    assert outputs[1].error == NOTHING_LEFT
    assert outputs[0].counts.steps == outputs[2].counts.steps == generate([made], [good])[0].counts.steps


@pytest.mark.parametrize("k", [0, 3])
def test_a_journal_is_all_that_another_engine_needs(k):
    """Requests that an engine had begun, in the middle of their words, end on another one as if nothing had been."""
    asked = [
        Request(
            PROMPT, 20, sampling=SamplingParams(grammar=Grammar("regex", "(?:ab|ba){4,7}c"), temperature=1.0, seed=i)
        )
        for i in range(4)
    ]
    drafts = DRAFTERS["right, then outside"]
    whole = generate([engine(SAYS, drafts, k)], asked)
    first, second = engine(SAYS, drafts, k), engine(SAYS, drafts, k)
    for i, request in enumerate(asked):
        first.add(i, request)
    for _ in range(3):
        first.step()
    lives = first.withdraw()
    assert all(0 < live.made < 9 for live in lives)
    for live in reversed(lives):
        second.adopt(live)
    outputs = []
    while second.num_unfinished:
        outputs += second.step()
    outputs.sort(key=lambda o: o.index)
    assert [(o.token_ids, o.finish_reason) for o in outputs] == [(o.token_ids, o.finish_reason) for o in whole]
    assert all(re.fullmatch("(?:ab|ba){4,7}c", TEXT.decode(o.token_ids)) for o in outputs)


def test_what_is_refused_before_anything_runs():
    made = engine(SAYS, SAYS, 1)

    def refused(message, grammar, engine=made):
        with pytest.raises(RequestError, match=message):
            generate([engine], [Request(PROMPT, 9, sampling=SamplingParams(grammar=grammar))])
        assert engine.num_unfinished == 0

    refused(r"^prompt 1: regex: the expression '\(a' cannot be used", Grammar("regex", "(a"))
    refused("^prompt 1: json_schema: keyword 'not' is not served", Grammar("json_schema", '{"not": {}}'))
    long = Grammar("choice", json.dumps(["x" * 9000]))
    refused(r"parameters take \d+ bytes, at most 8168 .* shorten", long)
    made._sampled = replace(made._sampled, text=None)
    refused("structured output needs a tokenizer, and this engine was given none", Grammar("regex", "a"))
    endless = engine(SAYS, SAYS, 1)
    endless._sampled = replace(endless._sampled, shape=replace(endless.shape, eos_token_ids=()))
    refused("cannot be had: .*no end-of-sequence token", Grammar("regex", "a"), endless)
