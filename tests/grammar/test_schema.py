"""Every text of a schema's expression is one that ``jsonschema`` accepts, and what would break that is refused."""

from __future__ import annotations

import datetime
import email.utils
import ipaddress
import json
import random
import re
import urllib.parse
import uuid

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import SCHEMAS

from draftline.graph.errors import RequestError
from draftline.stages.grammar.automaton import DEAD, Automaton, compile_regex
from draftline.stages.grammar.integers import between
from draftline.stages.grammar.schema import schema_regex


def walk(automaton: Automaton, seed: int, length: int = 60) -> str:
    """A random text that the automaton accepts: whatever byte is alive, then the shortest way to an end."""
    draw, state, text = random.Random(seed), automaton.start, b""
    ways = shortest(automaton)
    while not (automaton.final[state] and (len(text) >= length or draw.random() < 0.3)):
        alive = [b for b in range(256) if automaton.table[state, b] != DEAD]
        if not alive:
            break
        byte = draw.choice(alive) if len(text) < length else ways[state]
        text, state = text + bytes([byte]), int(automaton.table[state, byte])
    assert automaton.final[state]
    return text.decode()


def shortest(automaton: Automaton) -> dict[int, int]:
    """For each state the byte that leads to an end the fastest."""
    before: dict[int, list[tuple[int, int]]] = {}
    for state in range(1, len(automaton.table)):
        seen = set()
        for byte in range(256):
            after = int(automaton.table[state, byte])
            if after != DEAD and after not in seen:
                seen.add(after)
                before.setdefault(after, []).append((state, byte))
    ways, ring = {}, [s for s in range(len(automaton.final)) if automaton.final[s]]
    known = set(ring)
    while ring:
        following = []
        for after in ring:
            for state, byte in before.get(after, ()):
                if state not in known:
                    known.add(state)
                    ways[state] = byte
                    following.append(state)
        ring = following
    return ways


WORDS = (
    *("type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
    *("minLength", "maxItems", "pattern", "format", "minimum", "additionalProperties", "minProperties", "a"),
)


@settings(max_examples=60, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_what_is_written_is_what_the_schema_accepts(schema, seed):
    automaton = compile_regex(schema_regex(schema))
    for i in range(4):
        text = walk(automaton, seed + i)
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("date", datetime.date.fromisoformat),
        ("time", datetime.time.fromisoformat),
        ("date-time", datetime.datetime.fromisoformat),
        ("uuid", uuid.UUID),
        ("ipv4", ipaddress.IPv4Address),
        ("uri", lambda text: urllib.parse.urlsplit(text).hostname or 1 / 0),
        ("email", lambda text: email.utils.parseaddr(text)[1] == text or 1 / 0),
    ],
)
def test_formats_against_those_who_read_them(name, read):
    automaton = compile_regex(schema_regex({"type": "string", "format": name}))
    for seed in range(40):
        read(json.loads(walk(automaton, seed)))


@settings(max_examples=150, deadline=None)
@given(
    schema=st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["string", "#", "a", "object"])
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(WORDS),
                inner,
                max_size=3,
            ),
        ),
        max_leaves=8,
    )
)
def test_whatever_else_is_refused_and_nothing_breaks(schema):
    try:
        assert isinstance(schema_regex(schema), str)
    except RequestError as error:
        told = str(error)
        if " at #" not in told and "JSON" not in told:
            raise


@settings(max_examples=100, deadline=None)
@given(a=st.integers(-2000, 2000), n=st.integers(0, 3000))
def test_a_range_of_integers_is_just_that(a, n):
    regex = re.compile(between(a, a + n))
    for value in {a - 1, a, a + 1, a + n - 1, a + n, a + n + 1, 0, -1, 1, (a + n) // 2, 10 * a, -a}:
        assert bool(regex.fullmatch(str(value))) == (a <= value <= a + n), value
    for text in ("", "-", "-0", "00", f"0{a + n}", "1.0"):
        assert not regex.fullmatch(text)
    above, below = re.compile(between(a, None)), re.compile(between(None, a))
    for value in (a - 1, a, a + 1, 10 * abs(a) + 7, -10 * abs(a) - 7):
        assert bool(above.fullmatch(str(value))) == (value >= a)
        assert bool(below.fullmatch(str(value))) == (value <= a)


PERSON = {"type": "object", "properties": {"n": {"type": "integer"}, "m": {"type": "null"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (PERSON, ['{"n":1}', '{"n": -3, "m": null}', '{ "n":0 , "m":null }'], ['{"m":null}', '{"m":null,"n":1}', "{}"]),
        ({"type": "object", "properties": {}, "additionalProperties": False}, ["{}", "{ }"], ['{"a":1}']),
        ({"type": ["object", "null"]}, ["null", '{"a": [1, {"b": "c"}]}'], ["1", "[]"]),
        (
            {"type": "array", "items": {"type": "null"}, "maxItems": 2},
            ["[]", "[null, null]"],
            ["[null,]", "[null,null,null]"],
        ),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, ["[]"], ["[null]"]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 1}}}, ["1"], ["2"]),
        ({"type": "string"}, ['"a\\n\\"é😀"', '""'], ['"\n"', '"\\u00e9"', "a", '"a"b"']),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 12}, ["1", "12"], ["0", "13", "-1", "01", "1.0"]),
        ({}, ["1", '"a"', "[[1]]", '{"a": {"b": null}}'], ["[[[1]]]", "", "tru"]),
        (
            {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"k": {"const": "a"}, "v": {"type": "null"}},
                        "required": ["k", "v"],
                    },
                    {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]},
                ]
            },
            ['{"k":"a","v":null}', '{"k":"b"}'],
            ['{"k":"a"}', '{"k":"c"}'],
        ),
    ],
)
def test_texts_in_and_out(schema, good, bad):
    automaton = compile_regex(schema_regex(schema))
    assert [text for text in good if not automaton.matches(text.encode())] == []
    assert [text for text in bad if automaton.matches(text.encode())] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "uniqueItems": True}, r"'uniqueItems' is not served \(here are: items, .*\) at #"),
        ({"type": "object", "properties": {"a": {"type": "number", "maximum": 3}}}, r"'maximum' .* at #/properties/a"),
        ({"type": ["number", "integer"], "maximum": 3}, "maximum 3 of numbers is not served"),
        ({"type": "integer", "multipleOf": 2}, "'multipleOf'"),
        ({"type": "object", "properties": {"n": {"$ref": "#"}}}, r"\$ref '#' is recursive"),
        ({"$ref": "http://example.org/x"}, "must point into the schema itself"),
        ({"$ref": "#/$defs/x"}, "points at nothing"),
        ({"type": "object", "required": ["a"]}, 'required names "a"'),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "schemas 0 and 1 may match the same text"),
        ({"allOf": [{"type": "integer"}, {"const": 2}]}, "allOf of more than one"),
        ({"type": "string", "pattern": ".*"}, r"pattern '\.\*' matches text with a quote"),
        ({"type": "string", "pattern": "(a"}, r"pattern: the expression '\(a' cannot be used"),
        ({"type": "string", "pattern": "a", "minLength": 2}, "pattern together with another"),
        ({"type": "string", "format": "hostname"}, r"format 'hostname' is not served \(these are: date"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no integer is from 5 to 4"),
        ({"type": "text"}, 'type "text" is unknown; known: object'),
        ({"not": {}}, "'not' is not served"),
        (False, "false is no schema"),
        ({"enum": []}, "no value is allowed"),
        ({"const": float("inf")}, "inf is no value of JSON"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength=3 is more than maxLength=2"),
    ],
)
def test_what_is_not_served_is_named_with_its_place(schema, message):
    with pytest.raises(RequestError, match=message):
        schema_regex(schema)
