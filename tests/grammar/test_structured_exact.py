"""Structured text is the same at every K, layout, batch and runtime, and after failures; it is always of its form, or
the beginning of one. tiny-v4's real MTP layer drafts."""

from __future__ import annotations

import functools
import json
import re

import jsonschema
import pytest
from decoding import killing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemas import SCHEMAS
from untold import untold

from draftline.runtime.pipeline import Pipeline, open_pipeline
from draftline.runtime.request import Output, Request
from draftline.runtime.structured import grammar_of
from draftline.runtime.text import Text
from draftline.stages.grammar.automaton import DEAD, compile_regex
from draftline.stages.grammar.forms import regex_of
from draftline.stages.grammar.tokens import read_tokens
from draftline.stages.models.places import resolve
from draftline.stages.sampling.params import Grammar, SamplingParams

NEW = 36
EOS = 1
CALL = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "number"},
        "tags": {"type": "array", "items": {"enum": ["def", "import", "é"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
}
GRAMMARS = [
    grammar_of({"response_format": {"type": "json_schema", "json_schema": {"name": "call", "schema": CALL}}}),
    grammar_of({"guided_regex": r"def [a-z_]{2,9}\([a-z]*\):\n    return [0-9]+(?:\.[0-9]{2})?"}),
    grammar_of({"structured_outputs": {"choice": ["import os", "import sys", "import json"]}}),
    grammar_of({"response_format": {"type": "json_object"}}),
]
WANTED = [
    *(SamplingParams(grammar=g) for g in GRAMMARS),
    SamplingParams(),
    *(SamplingParams(grammar=g, temperature=1.0, seed=i, logprobs=1) for i, g in enumerate(GRAMMARS)),
    SamplingParams(grammar=GRAMMARS[1], temperature=0.8, repetition_penalty=1.3, top_p=0.9, min_tokens=12, seed=4),
    SamplingParams(temperature=1.0, seed=7),
]


def requests(pipeline: Pipeline) -> list[Request]:
    return [pipeline.request(f"def read_{i}(path):", NEW, sampling=p) for i, p in enumerate(WANTED)]


def told(outputs: list[Output]) -> list[tuple]:
    assert [o.error for o in outputs] == [None] * len(outputs)
    return [(o.token_ids, o.finish_reason, o.stop_reason, o.logprobs) for o in outputs]


@functools.cache
def automaton(grammar: Grammar):
    return compile_regex(regex_of(grammar))


def has_form(pipeline_text: Text, output: Output, grammar: Grammar | None) -> None:
    """Of its grammar's form as a whole, or the beginning of a text that is."""
    if grammar is None:
        return
    text = pipeline_text.decode(output.token_ids)
    if output.finish_reason != "stop":
        written = read_tokens(resolve("tiny-v4"), 4096, (EOS,)).text
        start = b"".join(written[t] for t in output.token_ids)  # half a character, perhaps
        assert automaton(grammar).run(automaton(grammar).start, start) != DEAD, text
    elif grammar.kind in ("json_schema", "json_object"):
        jsonschema.validate(json.loads(text), json.loads(grammar.spec or '{"type": "object"}'))
    elif grammar.kind == "regex":
        assert re.fullmatch(grammar.spec, text), text
    else:
        assert text in json.loads(grammar.spec)


@functools.cache
def plain() -> list[tuple]:
    """K=0, one request at a time: the truth."""
    with open_pipeline("ar.yaml", num_speculative_tokens=0, max_num_seqs=1) as pipeline:
        outputs = pipeline.run(requests(pipeline))
        for output, params in zip(outputs, WANTED, strict=True):
            has_form(pipeline.text, output, params.grammar)
        return told(outputs)


def test_there_is_something_to_see():
    reasons = [reason for (_, reason, _, _), p in zip(plain(), WANTED, strict=True) if p.grammar]
    assert reasons.count("stop") >= 5
    assert all(one[0][-1] == EOS for one in plain() if one[1] == "stop")


@pytest.mark.parametrize(
    ("graph", "k", "options"),
    [
        ("mtp.yaml", 1, {"tile": 16}),
        ("mtp.yaml", 3, {}),
        ("mtp.yaml", 3, {"max_num_seqs": 2}),
        ("mtp.yaml", 9, {"tile": 16, "max_num_seqs": 5}),
        ("mtp.yaml", 9, {"layouts": "packed"}),
        ("ngram.yaml", 4, {}),
        ("mtp.yaml", 3, {"runtime": "zmq"}),
        ("mtp-sampled.yaml", 0, {}),
    ],
)
def test_text_is_that_of_plain_decoding(graph, k, options):
    with open_pipeline(graph, num_speculative_tokens=k, **{"max_num_seqs": 8, **options}) as pipeline:
        outputs = pipeline.run(requests(pipeline))
    assert told(outputs) == plain()
    if k > 1 and graph != "ngram.yaml":
        assert outputs[0].counts.num_accepted_tokens > 0


def test_drawn_drafts_keep_to_the_form_and_to_greedy_text():
    with open_pipeline("mtp-sampled.yaml", num_speculative_tokens=3, max_num_seqs=8) as pipeline:
        outputs = pipeline.run(requests(pipeline))
        for i, (output, params) in enumerate(zip(outputs, WANTED, strict=True)):
            has_form(pipeline.text, output, params.grammar)
            if params.temperature == 0:
                assert output.token_ids == plain()[i][0]


def test_a_worker_that_is_killed_in_the_middle_of_an_object_changes_nothing():
    with open_pipeline("mtp-zmq.yaml", num_speculative_tokens=9, max_num_seqs=8) as pipeline:
        outputs = pipeline.run(requests(pipeline), killing(pipeline, 1, after=30))
        assert pipeline.engine.runtime.totals.restarts == 1
    assert told(outputs) == plain()


@pytest.fixture(scope="module")
def hot():
    with open_pipeline("mtp.yaml", num_speculative_tokens=3, max_num_seqs=4) as pipeline:
        yield pipeline


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schemas=st.lists(SCHEMAS, min_size=2, max_size=3), temperature=st.sampled_from([0.0, 1.0, 3.0]))
def test_any_schema_at_any_temperature(hot, schemas, temperature):
    made = [Grammar("json_schema", json.dumps(schema)) for schema in schemas]
    params = [SamplingParams(grammar=g, temperature=temperature, seed=i) for i, g in enumerate(made)]
    outputs = hot.run([hot.request("x = ", 24, sampling=p) for p in params])
    assert [o.error for o in outputs] == [None] * len(made)
    for output, grammar in zip(outputs, made, strict=True):
        has_form(hot.text, output, grammar)


def test_what_stands_before_the_text_is_no_part_of_it(hot):
    """Neither a brace at the end of the prompt, nor a chat's prefix or a thinking block."""
    for prompt in ("{", '{"a": ', "<think>{</think>\n", "```json\n"):
        [output] = hot.run([hot.request(prompt, 60, sampling=WANTED[0])])
        text = hot.text.decode(output.token_ids)
        assert text.startswith("{")
        assert not text.startswith("{{")
        has_form(hot.text, output, GRAMMARS[0])


def test_drafts_that_keep_to_the_form_stand_more_often(hot):
    """The text is the same with a graph whose drafter is told nothing."""
    asked = [hot.request(f"x{i} = ", NEW, sampling=WANTED[i % 2]) for i in range(4)]
    outputs = hot.run(asked)
    with open_pipeline(untold(), source="mtp.yaml", num_speculative_tokens=3, max_num_seqs=4) as pipeline:
        others = pipeline.run(asked)
    assert told(outputs) == told(others)
    steps = [sum(o.counts.steps for o in which) for which in (outputs, others)]
    assert steps[0] < 0.8 * steps[1]
