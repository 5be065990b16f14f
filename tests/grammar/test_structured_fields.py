"""Structured output as clients and the command line ask for it, and what they are told where they ask wrongly."""

from __future__ import annotations

import json
import re

import pytest

from draftline.graph.errors import RequestError
from draftline.runtime.cli import main
from draftline.runtime.structured import grammar_of
from draftline.stages.sampling.params import Grammar

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": None, "guided_json": None, "temperature": 2}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            Grammar("json_schema", TEXT),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar("json_schema", TEXT)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, Grammar("json_schema", TEXT)),
        ({"structured_outputs": {"json_object": True}}, Grammar("json_object")),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"structured_outputs": {"choice": ["a", "b"]}, "guided_regex": None}, Grammar("choice", '["a","b"]')),
        ({"structured_outputs": {"regex": "a+"}, "response_format": {"type": "text"}}, Grammar("regex", "a+")),
        ({"guided_json": SCHEMA}, Grammar("json_schema", TEXT)),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_choice": ["a,b", "c"]}, Grammar("choice", '["a,b","c"]')),
    ],
)
def test_fields(fields, grammar):
    assert grammar_of(fields) == grammar


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": "json"}, "^here: response_format: type is None; one of text, json_object, json_schema"),
        ({"response_format": {"type": "json"}}, "response_format: type is 'json'"),
        ({"response_format": {"type": "json_schema"}}, "response_format: type json_schema needs"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            r"^here: response_format\.json_schema\.schema: type \"x\" is unknown; known: object, .* at #$",
        ),
        ({"structured_outputs": []}, "structured_outputs: an object is wanted"),
        ({"structured_outputs": {"grammar": "root"}}, r"structured_outputs: 'grammar' is not served; known: choice"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs: json and regex each give"),
        ({"structured_outputs": {"json_object": "yes"}}, r"structured_outputs\.json_object: is 'yes'; true or false"),
        ({"structured_outputs": {"json": "{"}}, r"structured_outputs\.json: not JSON: "),
        ({"guided_json": "[" * 99999}, "guided_json: not JSON"),
        ({"guided_json": {1, 2}}, "guided_json: not JSON"),
        ({"guided_regex": ""}, "guided_regex: a regular expression is wanted"),
        ({"guided_regex": "(a"}, r"^here: guided_regex: the expression '\(a' cannot be used"),
        ({"guided_choice": "a,b"}, "guided_choice: a list of strings is wanted"),
        ({"guided_choice": []}, "guided_choice: a list of strings of at least one character"),
        ({"guided_choice": ["a", ""]}, "guided_choice: a list of strings of at least one character"),
        (
            {"guided_choice": ["a"], "response_format": {"type": "json_object"}},
            "response_format and guided_choice both",
        ),
    ],
)
def test_wrong_fields_are_named(fields, message):
    with pytest.raises(RequestError, match=message):
        grammar_of(fields, "here")


RUN = ["--max-new-tokens", "40", "--no-plan-cache", "--json"]


def texts(capsys, *args: str) -> list[str]:
    assert main([*RUN, *args]) == 0
    return [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]


def test_flags(capsys, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA, indent=2))
    for schema in (TEXT, f"@{path}"):
        [text] = texts(capsys, "--prompt", "x = ", "--guided-json", schema)
        assert 0 <= json.loads(text)["n"] <= 9
    assert texts(capsys, "--prompt", "x = ", "--guided-choice", "yes,no")[0] in ("yes", "no")
    assert texts(capsys, "--prompt", "x = ", "--guided-choice", '["a,b"]') == ["a,b"]
    assert re.fullmatch("[0-4]{7}", texts(capsys, "--prompt", "x = ", "--guided-regex", "[0-4]{7}")[0])


def test_a_prompts_own_form_wins(capsys, tmp_path):
    path = tmp_path / "p.jsonl"
    wanted = [{}, {"structured_outputs": {"choice": ["left", "right"]}}, {"structured_outputs": None, "temperature": 1}]
    path.write_text("".join(json.dumps({"prompt": "go ", **own}) + "\n" for own in wanted))
    got = texts(capsys, "--prompt-file", str(path), "--guided-regex", "[0-4]{7}")
    assert [bool(re.fullmatch("[0-4]{7}", text)) for text in got] == [True, False, True]
    assert got[1] in ("left", "right")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--guided-json", "{"], "error: --guided-json: not JSON"),
        (["--guided-json", "@nowhere"], "error: --guided-json @nowhere: cannot be read"),
        (["--guided-json", '{"not": {}}'], "error: --guided-json: keyword 'not' is not served (here are: "),
        (["--guided-regex", "(a"], "error: --guided-regex: the expression '(a' cannot be used"),
        (["--guided-choice", "[1]"], "error: --guided-choice: a list of strings"),
        (["--guided-choice", "[1"], "error: --guided-choice: "),
        (
            ["--guided-choice", "a", "--guided-regex", "a"],
            "--guided-regex and --guided-choice each give the text a form",
        ),
    ],
)
def test_wrong_flags_are_one_line_before_anything_is_loaded(capsys, flags, says):
    assert main(["--prompt", "x", "--model", "no-such-model", *flags]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_wrong_line_of_a_file_is_named(capsys, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "x", "structured_outputs": {"json": {"type": "int"}}}\n')
    assert main(["--prompt-file", str(path)]) == 2
    assert f'{path}:1: structured_outputs.json: type "int" is unknown' in capsys.readouterr().err
