"""Structured output over HTTP, as clients of OpenAI and of vLLM ask for it, and the sampler's parameters."""

from __future__ import annotations

import json
import re
import threading

import jsonschema
import openai
import pytest
from serving import Server

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2, 3]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
ASK = {"model": "tiny", "max_tokens": 120, "seed": 5}


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_answer_keeps_to_a_schema(server: Server, k, stream):
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
    got = server.client().chat.completions.create(
        messages=[{"role": "user", "content": "a thing"}],
        response_format=form,
        stream=stream,
        extra_body={"num_speculative_tokens": k},
        **ASK,
    )
    text = "".join(c.choices[0].delta.content or "" for c in got) if stream else got.choices[0].message.content
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    ("field", "value", "form"),
    [
        ("structured_outputs", {"regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
        ("structured_outputs", {"choice": ["maybe", "never"]}, "maybe|never"),
        ("guided_regex", "(ab|cd){2}e", "(ab|cd){2}e"),
        ("guided_choice", ["one", "two"], "one|two"),
    ],
)
def test_completions_keep_to_a_form(server: Server, field, value, form):
    got = server.client().completions.create(prompt="x = ", extra_body={field: value}, **ASK)
    assert re.fullmatch(form, got.choices[0].text), got.choices[0].text
    assert got.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("structured_outputs", {"regex": "(["}, "regex"),
        ("structured_outputs", {"rgex": "a"}, "rgex"),
        ("response_format", {"type": "yaml"}, "json_schema"),
        ("guided_choice", [], "choice"),
    ],
)
def test_a_form_that_cannot_be_kept_to_is_refused(server: Server, field, value, says):
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().completions.create(prompt="x = ", extra_body={field: value}, **ASK)
    assert caught.value.param == field
    assert says in str(caught.value)


def test_a_seed_gives_the_same_text_at_every_depth_and_choices_differ(server: Server):
    texts = []
    for k in (0, 1, 3):
        got = server.client().completions.create(
            model="tiny",
            prompt="class Stack:",
            max_tokens=24,
            seed=11,
            n=3,
            temperature=0.9,
            top_p=0.95,
            presence_penalty=0.5,
            extra_body={"num_speculative_tokens": k, "top_k": 50, "repetition_penalty": 1.1},
        )
        texts.append([c.text for c in got.choices])
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) == 3


def test_log_probabilities_are_the_targets(server: Server):
    """Greedy: each token is the likeliest, and its log-probability is the first of those that stand beside it."""
    ask = {"model": "tiny", "prompt": "def f(x):", "max_tokens": 12, "temperature": 0, "logprobs": 3}
    got = [
        server.client().completions.create(**ask, extra_body={"num_speculative_tokens": k}).choices[0].logprobs
        for k in (0, 3)
    ]
    assert got[0] == got[1]
    for token, value, top in zip(got[0].tokens, got[0].token_logprobs, got[0].top_logprobs, strict=True):
        assert value < 0
        assert top[token] == value == max(top.values())
        assert len(top) == 3


def test_stop_strings_and_stop_tokens(server: Server, greedy):
    whole = greedy("def read_lines(path):", 40)
    cut = whole.index("return")
    for k in (0, 3):
        got = server.client().completions.create(
            model="tiny",
            prompt="def read_lines(path):",
            max_tokens=40,
            temperature=0,
            stop=["never there", "return"],
            extra_body={"num_speculative_tokens": k},
        )
        assert (got.choices[0].text, got.choices[0].finish_reason) == (whole[:cut], "stop")
        assert got.choices[0].stop_reason == "return"


def test_an_expression_that_takes_long_to_refuse_holds_up_nobody(server: Server):
    """Its automaton has 2^40 states: it is given up after seconds, in which others are served."""
    refused: list[int] = []

    def ask() -> None:
        refused.append(server.post("/v1/completions", {"prompt": "x", "guided_regex": "(a|b)*a(a|b){40}"}).status_code)

    thread, served = threading.Thread(target=ask), 0
    thread.start()
    while thread.is_alive():
        assert server.get("/health").status_code == 200
        served += thread.is_alive()
    thread.join()
    assert refused == [400]
    assert served > 20
