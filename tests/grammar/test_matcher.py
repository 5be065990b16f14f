"""Automata, vocabularies and masks against Python's ``re`` and against trying every token."""

from __future__ import annotations

import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.graph.errors import ModelError, RequestError
from draftline.runtime import grammars
from draftline.runtime.grammars import fault
from draftline.runtime.text import Text
from draftline.stages.grammar import pieces
from draftline.stages.grammar.automaton import DEAD, compile_regex, within
from draftline.stages.grammar.matcher import END, Grammars, Matcher
from draftline.stages.grammar.tokens import Tokens, read_tokens, tokens_of
from draftline.stages.models.places import resolve
from draftline.stages.sampling.params import Grammar

BYTES = {b: bytes([b]) for b in range(256)}
WORDS = ["ab", "ba", "aab", '{"', "é", "😀", "\xa0", "cc", "abab", "  "]
V, EOS = 300, (298, 299)
TOKENS = tokens_of({**BYTES, **{256 + i: w.encode() for i, w in enumerate(WORDS)}}, V, EOS)

ATOMS = st.sampled_from(["a", "b", "c", "é", "[ab]", "[^a]", "(?:ab|ba)", ".", "{", "😀"]).map(
    lambda s: re.escape(s) if s == "{" else s
)
REGEXES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda p: f"(?:{p[0]}|{p[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}", "{2,3}"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=5,
)


def could_end(regex: re.Pattern, matcher: Matcher, state: int) -> bool:
    return bool(matcher.mask(state)[list(EOS)].all())


@settings(max_examples=60, deadline=None)
@given(regex=REGEXES, texts=st.lists(st.text("abcé{😀\n", max_size=6), max_size=8))
def test_an_automaton_matches_what_re_does(regex, texts):
    automaton = compile_regex(regex)
    for text in texts:
        assert automaton.matches(text.encode()) == bool(re.fullmatch(regex, text)), text


@settings(max_examples=40, deadline=None)
@given(regex=REGEXES, data=st.data())
def test_a_mask_is_what_trying_every_token_gives(regex, data):
    matcher = Matcher(compile_regex(regex), TOKENS)
    state = matcher.start
    for _ in range(3):
        after = [matcher.advance(state, token) for token in range(V)]
        assert matcher.mask(state).tolist() == [one != DEAD for one in after]
        alive = [token for token in range(V) if after[token] != DEAD]
        assert alive  # no state is a trap
        state = after[data.draw(st.sampled_from(alive))]
    assert not matcher.mask(DEAD).any()


def test_the_end_is_allowed_where_the_text_may_end_and_then_nothing_else():
    matcher = Matcher(compile_regex("(?:ab){1,2}"), TOKENS)
    state = matcher.advance(matcher.start, 256)
    assert set(matcher.mask(state).nonzero().flatten().tolist()) == {*EOS, ord("a"), 256}
    last = matcher.advance(matcher.start, 264)  # abab: only an end can follow
    assert set(matcher.mask(last).nonzero().flatten().tolist()) == set(EOS)
    assert matcher.advance(matcher.start, EOS[0]) == DEAD
    for end in EOS:
        over = matcher.advance(last, end)
        assert over == END  # and one that is asked again says the same
        assert set(matcher.mask(over).nonzero().flatten().tolist()) == set(EOS)
        assert matcher.advance(over, EOS[0]) == END
        assert matcher.advance(over, ord("a")) == DEAD


def test_grammars_share_what_is_compiled_and_keep_few():
    reads = []
    known = Grammars(lambda: (reads.append(1), TOKENS)[1])
    first = known.of(Grammar("regex", "a"))
    assert known.of(Grammar("regex", "a")) is first
    for i in range(40):
        known.of(Grammar("choice", json.dumps([f"x{i}"])))
    assert len(known._matchers) == 16
    assert known.of(Grammar("regex", "a")) is not first
    assert reads == [1]


def test_within():
    a, b = compile_regex("(?:ab)+"), compile_regex("[ab]*")
    assert within(a, b)
    assert not within(b, a)


@pytest.mark.parametrize("regex", ["^ab$", "^ab", "ab$"])
def test_anchors_at_the_ends_change_nothing(regex):
    automaton = compile_regex(regex)
    assert automaton.matches(b"ab")
    assert not automaton.matches(b"aab")
    assert not automaton.matches(b"abb")


def test_a_dollar_that_is_meant_stays():
    assert compile_regex(r"a\$").matches(b"a$")
    assert compile_regex(r"a\\$").matches(b"a\\")


@pytest.mark.parametrize("n", [20, 200])
def test_bounded_strings_compile_in_no_time(n):
    """The automaton that also searches is exponential in n; see FENCE."""
    automaton = compile_regex(f'"{pieces.CHARACTER}{{0,{n}}}"')
    assert automaton.matches(b'"' + b"a" * n + b'"')
    assert not automaton.matches(b'"' + b"a" * (n + 1) + b'"')


@pytest.mark.parametrize(
    ("regex", "message"),
    [
        ("(a", "cannot be used: Failed to build DFA"),
        ("a^b", "no text matches it"),
        (r"\bfoo", "cannot be used"),
        ("(?=a)b", "cannot be used"),
        (r"[a&&b]", "no text matches"),
        ("a{20000}", "takes 200.. states; at most 16000"),
    ],
)
def test_wrong_expressions(regex, message):
    with pytest.raises(RequestError, match=message):
        compile_regex(regex)


def test_where_a_text_may_end_it_may_also_go_on():
    """Also over a byte after which it may not; see FENCE."""
    automaton = compile_regex("[0-9]+(?:[.][0-9]+)?")
    assert [text for text in ("1", "12", "1.5", "10.25") if not automaton.matches(text.encode())] == []
    assert not automaton.matches(b"1.")


def test_the_driver_tries_grammars_under_limits(monkeypatch):
    monkeypatch.setattr(grammars, "CPU_SECONDS", 1)
    assert fault(Grammar("regex", "a+")) == ""
    assert "cannot be used" in fault(Grammar("regex", "(a"))
    assert fault(Grammar("regex", "(?:a|b)*a(?:a|b){40}")).startswith("it takes more than 1 s or 2 GiB")
    assert "valid UTF-8" in fault(Grammar("regex", "\ud800"))
    assert "not JSON" in fault(Grammar("json_schema", "{"))
    assert "nested more than 32" in fault(Grammar("json_schema", '{"items":' * 40 + "{}" + "}" * 40))
    assert "not JSON" in fault(Grammar("json_schema", "[" * 100_000))
    doubling = {f"d{i}": {"prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": True}
    wrong = fault(Grammar("json_schema", json.dumps({"$ref": "#/$defs/d0", "$defs": doubling})))
    assert "more than" in wrong
    for spec in ("[]", '["a", 1]', '"a"', '[""]'):
        assert "list of strings" in fault(Grammar("choice", spec))


# -- vocabularies --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> Tokens:
    return read_tokens(resolve("tiny-v4"), 4096, (1,))


@settings(max_examples=30, deadline=None)
@given(text=st.text(max_size=30))
def test_the_bytes_of_tokens_are_the_bytes_of_the_text(tiny, text):
    ids = Text(resolve("tiny-v4")).encode(text)
    assert b"".join(tiny.text[i] for i in ids) == text.encode()


def test_special_tokens_stand_for_no_text(tiny):
    assert {0, 1}.isdisjoint(tiny.text)
    assert len(tiny.text) == 4094


def written(folder, vocab, decoder, added=()) -> None:
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": model, "decoder": decoder, "added_tokens": list(added)})
    )


def test_sentence_piece_vocabularies(tmp_path):
    vocab = {f"<0x{b:02X}>": b for b in range(256)} | {"▁the": 256, "é": 257, "</s>": 258, "▁": 259}
    fallback = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    added = [{"id": 258, "content": "</s>", "special": True}, {"id": 260, "content": "<tool>", "special": False}]
    written(tmp_path, vocab, fallback, added)
    tokens = read_tokens(tmp_path, 300, (258,))
    assert [tokens.text[i] for i in (10, 256, 257, 259, 260)] == [b"\n", b" the", "é".encode(), b" ", b"<tool>"]
    assert 258 not in tokens.text


def test_vocabularies_that_cannot_be_constrained(tmp_path):
    def refused(message, ends=(1,), **options):
        written(tmp_path, **{"vocab": {"a": 0, "b": 1}, "decoder": {"type": "ByteLevel"}, **options})
        with pytest.raises(ModelError, match=message):
            read_tokens(tmp_path, 300, ends)

    refused(r"tokenizer\.json: the tokenizer has no token for byte 0x00 alone")
    refused("no end-of-sequence token", ends=())
    refused(r"its decoder is \['WordPiece'\]; ByteLevel", decoder={"type": "WordPiece"})
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="not a tokenizer"):
        read_tokens(tmp_path, 300, (1,))


def test_ids_beyond_the_vocabulary_are_never_allowed():
    matcher = Matcher(compile_regex(".*"), tokens_of({**BYTES, 400: b"ab"}, V, EOS))
    mask = matcher.mask(matcher.start)
    assert mask.shape == (V,)
    assert not mask[256:298].any()
    assert isinstance(mask, torch.Tensor)
