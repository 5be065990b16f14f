"""Whatever is sent, the answer is an error in OpenAI's shape that names the field, and the server goes on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Server

PATH = "/v1/completions"
JSON = {"Content-Type": "application/json"}
OK: dict[str, Any] = {"prompt": "x", "max_tokens": 1}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
BAD: list[tuple[Any, str, str]] = [
    # value, the field that is named, part of the message
    ({}, "prompt", "missing"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": ""}, "prompt", "no tokens"),
    ({"prompt": [""]}, "prompt", "no tokens"),
    ({"prompt": ["x", ""]}, "prompt[1]", "no tokens"),
    ({"prompt": 7}, "prompt", "number"),
    ({"prompt": {"a": 1}}, "prompt", "object"),
    ({"prompt": ["x", [1]]}, "prompt", "mix"),
    ({"prompt": [1, "x"]}, "prompt", "number"),
    ({"prompt": [[1, 1.5]]}, "prompt", "integers"),
    ({"prompt": [True]}, "prompt", "boolean"),
    ({"prompt": [[]]}, "prompt", "no tokens"),
    ({"prompt": [-1]}, "prompt", "vocabulary"),
    ({"prompt": [10**9]}, "prompt", "vocabulary"),
    ({"prompt": [10**400]}, "prompt", "vocabulary"),
    ({"prompt": ["x"] * 129}, "prompt", "128"),
    ({"prompt": ["x"] * 65, "n": 2}, "n", "128"),
    ({"prompt": [5] * 1024}, "prompt", "1024 tokens"),
    ({"prompt": "x " * 3000}, "prompt", "tokens"),
    ({**OK, "max_tokens": -1}, "max_tokens", "-1"),
    ({**OK, "max_tokens": 0}, "max_tokens", "1 or more"),
    ({**OK, "max_tokens": 10**400}, "max_tokens", "context"),
    ({**OK, "max_tokens": 1.5}, "max_tokens", "1.5"),
    ({**OK, "max_tokens": "5"}, "max_tokens", "'5'"),
    ({**OK, "max_tokens": True}, "max_tokens", "True"),
    ({**OK, "temperature": -0.1}, "temperature", "-0.1"),
    ({**OK, "temperature": 1e308}, "temperature", "100"),
    ({**OK, "temperature": "hot"}, "temperature", "'hot'"),
    ({**OK, "top_p": 0}, "top_p", "greater than 0"),
    ({**OK, "top_p": 1.01}, "top_p", "1.01"),
    ({**OK, "top_k": -2}, "top_k", "-2"),
    ({**OK, "min_p": 2}, "min_p", "2"),
    ({**OK, "presence_penalty": 3}, "presence_penalty", "3"),
    ({**OK, "frequency_penalty": -3}, "frequency_penalty", "-3"),
    ({**OK, "repetition_penalty": 0}, "repetition_penalty", "0"),
    ({**OK, "logit_bias": {"x": 1}}, "logit_bias", "token ids"),
    ({**OK, "logit_bias": {"99999999": 1}}, "logit_bias", "vocabulary"),
    ({**OK, "logit_bias": {"5": 101}}, "logit_bias", "-100 to 100"),
    ({**OK, "logit_bias": [5]}, "logit_bias", "object"),
    ({**OK, "stop": ""}, "stop", "empty"),
    ({**OK, "stop": [1]}, "stop", "string"),
    ({**OK, "stop": ["x"] * 17}, "stop", "16"),
    ({**OK, "stop_token_ids": [-1]}, "stop_token_ids", "vocabulary"),
    ({**OK, "stop_token_ids": [1.5]}, "stop_token_ids[0]", "integer"),
    ({**OK, "bad_words": [""]}, "bad_words[0]", "no tokens"),
    ({**OK, "min_tokens": 2}, "min_tokens", "more than the 1"),
    ({**OK, "n": 0}, "n", "1"),
    ({**OK, "n": 129}, "n", "128"),
    ({**OK, "seed": 2**63}, "seed", "less than"),
    ({**OK, "seed": 10**5000}, "", "digits"),
    ({**OK, "logprobs": 21}, "logprobs", "20"),
    ({**OK, "logprobs": True}, "logprobs", "True"),
    ({**OK, "echo": True, "logprobs": 1}, "echo", "prompt tokens"),
    ({**OK, "num_speculative_tokens": -1}, "num_speculative_tokens", "-1"),
    ({**OK, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "boolean"),
    ({**OK, "stream_options": {"x": 1}}, "stream_options.x", "unknown"),
    ({**OK, "suffix": "y"}, "suffix", "not supported"),
    ({**OK, "best_of": 2}, "best_of", "not supported"),
    ({**OK, "temperatur": 1}, "temperatur", "'temperature'"),
    ({**OK, "user": 5}, "user", "string"),
    ({**OK, "prompt": "\ud800"}, "prompt", "surrogate"),
    ({**OK, "prompt": ["\udfff"]}, "prompt", "surrogate"),
    ({**OK, "stop": "\ud800"}, "stop", "surrogate"),
    ({**OK, "model": "\ud800"}, "model", "surrogate"),
    ({**OK, "\ud800": 1}, "body", "valid string"),
]
BAD_CHAT: list[tuple[Any, str, str]] = [
    ({}, "messages", "missing"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": "x"}, "messages", "list"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "number"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "array"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
        "only parts",
    ),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "surrogate"),
    ({**CHAT, "tools": [{"type": "function"}]}, "tools", "not supported"),
    ({**CHAT, "response_format": {"type": "yaml"}}, "response_format", "json_schema"),
    ({**CHAT, "chat_template": "x"}, "chat_template", "not supported"),
    ({**CHAT, "top_logprobs": 2}, "top_logprobs", "logprobs"),
    ({**CHAT, "logprobs": 2}, "logprobs", "boolean"),
    ({**CHAT, "max_completion_tokens": 2}, "max_tokens", "another limit"),
    ({**CHAT, "max_tokens": 2000}, "max_tokens", "1024"),
    ({"messages": [{"role": "user", "content": "x " * 3000}]}, "messages", "1024"),
    ({**CHAT, "prompt": "x"}, "prompt", "unknown"),
    ({**CHAT, "chat_template_kwargs": {"x": ["\ud800"]}}, "chat_template_kwargs", "Unicode"),
    ({**CHAT, "chat_template_kwargs": {"\ud800": 1}}, "chat_template_kwargs", ""),
]


def error(got: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Its error, in OpenAI's shape."""
    assert got.status_code == status, got.text
    assert set(got.json()) == {"error"}
    found = got.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert found["message"]
    assert found["type"]
    return found


def send(server: Server, path: str, value: Any) -> httpx.Response:
    """Also what httpx would refuse to write."""
    import sys

    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        data = json.dumps(value)
    finally:
        sys.set_int_max_str_digits(digits)
    return server.post(path, content=data, headers=JSON)


@pytest.mark.parametrize(("value", "param", "part"), BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("stream", [False, True])
def test_bad_completions(server: Server, value, param, part, stream):
    found = error(send(server, PATH, {**value, "stream": stream} if stream else value))
    assert found["param"] == (param or None)
    assert part in found["message"]
    assert found["type"] == "invalid_request_error"


@pytest.mark.parametrize(("value", "param", "part"), BAD_CHAT, ids=range(len(BAD_CHAT)))
def test_bad_chats(server: Server, value, param, part):
    found = error(send(server, "/v1/chat/completions", value))
    assert found["param"] == param
    assert part in found["message"]


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"prompt": "x", "temperature": NaN}', "NaN"),
        (b'{"prompt": "x", "temperature": Infinity}', "Infinity"),
        (b'{"prompt": "x", "temperature": 1e999}', "temperature"),
        (b'{"prompt": "\xff"}', "JSON"),
        (b"[" * 100_000, "nested"),
        (b'{"prompt":' + b"[" * 100_000, "nested"),
    ],
)
def test_what_is_no_json(server: Server, raw, part):
    assert part in error(server.post(PATH, content=raw, headers=JSON))["message"]


def test_null_is_the_same_as_left_out(server: Server, greedy):
    nulls = dict.fromkeys(["temperature", "n", "stop", "logit_bias", "stream", "suffix", "tools", "seed", "model"])
    assert server.post(PATH, {**OK, **nulls}).status_code == 200


def test_what_asks_for_nothing_is_no_reason_to_refuse(server: Server):
    inert = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": False}
    assert server.post("/v1/chat/completions", {**CHAT, **inert}).status_code == 200
    assert server.post(PATH, {**OK, "best_of": 1}).status_code == 200


def test_other_refusals(server: Server):
    found = error(server.post(PATH, {**OK, "model": "gpt-4"}), 404)
    assert (found["param"], found["code"]) == ("model", "model_not_found")
    assert "tiny" in found["message"]
    assert error(server.get(PATH), 405)["code"] == "method_not_allowed"
    assert error(server.post("/v1/nothing", {}), 404)["code"] == "not_found"
    assert error(server.get("/nothing"), 404)["code"] == "not_found"
    assert error(server.post(PATH, content=b"{}", headers={"Content-Type": "text/plain"}), 415)["code"]
    huge = server.post(PATH, content=b"x" * (5 * 2**20), headers=JSON)
    assert error(huge, 413)["code"] == "body_too_large"

    def parts():
        for _ in range(80):
            yield b" " * 65536

    assert error(server.post(PATH, content=parts(), headers=JSON), 413)["code"] == "body_too_large"
    assert error(server.post("/tokenize", {}))["param"] == "prompt"
    assert error(server.post("/detokenize", {"tokens": [10**9]}))["param"] == "tokens[0]"
    with pytest.raises(openai.NotFoundError):
        server.client().completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        server.client().completions.create(model="tiny", prompt="x", max_tokens=5000)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-5, 5),
    st.floats(),
    st.text(st.characters(codec=None), max_size=5),  # lone surrogates too
)
values = st.recursive(scalars, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3))
FIELDS = [
    *(
        "prompt",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "seed",
        "stop",
        "temperature",
        "top_p",
        "top_k",
    ),
    *("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "ignore_eos"),
    *(
        "stop_token_ids",
        "bad_words",
        "logprobs",
        "top_logprobs",
        "echo",
        "stream",
        "stream_options",
        "suffix",
        "tokens",
    ),
    *("num_speculative_tokens", "top_k", "tokens", "user", "model", "chat_template_kwargs", "continue_final_message"),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from([PATH, "/v1/chat/completions", "/tokenize", "/detokenize"]),
    base=st.sampled_from([OK, CHAT, {}]),
    more=st.dictionaries(st.sampled_from(FIELDS), values, max_size=3),
)
def test_no_body_makes_the_server_fail(server: Server, path, base, more):
    got = server.post(path, content=json.dumps({**base, **more}), headers=JSON)
    assert got.status_code in (200, 400, 404), got.text
    if got.status_code != 200:
        error(got, got.status_code)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=60))
def test_no_bytes_make_the_server_fail(server: Server, raw):
    assert server.post(PATH, content=raw, headers=JSON).status_code == 400
