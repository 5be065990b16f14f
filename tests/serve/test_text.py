"""Text in pieces: joined, they are the text of the whole; stop strings end it where the whole text says."""

from __future__ import annotations

from functools import cache

import pytest
import smollm2
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftline.runtime.request import Counts, Output, Request
from draftline.runtime.serve.jobs import Job
from draftline.runtime.serve.pieces import Joiner
from draftline.runtime.serve.spelling import Spelling
from draftline.runtime.text import Text
from draftline.stages.models.places import PACKAGED


@cache
def text_of(name: str) -> Text:
    return Text(PACKAGED / "tiny-v4" if name == "tiny-v4" else smollm2.fetched())


@pytest.fixture(scope="module")
def fallback(tmp_path_factory: pytest.TempPathFactory) -> Text:
    """A tokenizer as Llama 2's: words begin with ▁, which is a space but for the first; what it lacks are bytes."""
    words = ["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(256)), "▁a", "▁b", "c", "▁", "é"]
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    folder = tmp_path_factory.mktemp("fallback")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Text(folder)


def pieces(text: Text, ids: list[int], skip: bool) -> list[str]:
    stream = text.stream(skip_special_tokens=skip)
    return [*(stream.feed([i]) for i in ids), stream.flush()]


@pytest.mark.parametrize("name", ["tiny-v4", "smollm2"])
@settings(deadline=None)  # the first example loads the tokenizer
@given(data=st.data(), skip=st.booleans())
def test_pieces_joined_are_the_text_of_the_whole(name, data, skip):
    text = text_of(name)
    some = st.integers(0, text.vocab_size - 1) | st.integers(0, 300)  # special tokens and single bytes come first
    ids = data.draw(st.lists(some, max_size=40))
    assert "".join(pieces(text, ids, skip)) == text.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", ["tiny-v4", "smollm2"])
@settings(deadline=None)
@given(words=st.text(max_size=30))
def test_a_piece_never_holds_half_a_character(name, words):
    text = text_of(name)
    ids = list(text.encode(words, add_special_tokens=False))
    found = pieces(text, ids, False)
    assert "".join(found) == text.decode(ids, skip_special_tokens=False)
    assert all("\ufffd" not in piece for piece in found) or "\ufffd" in text.decode(ids)  # it lacks some bytes


def test_byte_fallback(fallback):
    """A space at the very beginning is dropped and no other; an emoji of four byte tokens comes whole; a broken end is
    shown as decode shows it."""
    emoji = [2 + b for b in "🙂".encode()]
    a, b, c = 258, 259, 260
    assert pieces(fallback, [1, a, b, *emoji, c, a], True) == ["", "a", " b", "", "", "", "🙂", "c", " a", ""]
    euro = [2 + b for b in "€".encode()]
    assert "".join(pieces(fallback, [a, *emoji, *euro, b], True)) == "a🙂€ b"
    assert "".join(pieces(fallback, [a, *emoji, *euro[:2]], True)) == "a🙂\ufffd\ufffd", "what was whole stays"
    for ids in ([a, *emoji[:3]], [a, emoji[0], c], [*emoji[:2], *emoji], [a, a, 261, 261, b]):
        assert "".join(pieces(fallback, ids, True)) == fallback.decode(ids)


def job(**options) -> Job:
    stop = options.pop("stop", ())
    return Job(0, Request((5,), 100, stop=stop), **options)


def output(reason="length") -> Output:
    return Output(0, (5,), (), reason, Counts(), 0, 0.0, 0.0)


@given(
    words=st.text("ab \n", max_size=30),
    stop=st.lists(st.text("ab \n", min_size=1, max_size=5), min_size=1, max_size=3),
    joined=st.booleans(),
    size=st.integers(1, 5),
)
def test_stop_strings_end_the_text_and_nothing_is_taken_back(words, stop, joined, size):
    text = text_of("tiny-v4")
    ids = text.encode(words, add_special_tokens=False)
    joiner, out, finish = Joiner(job(stop=tuple(stop), joined=joined), text), "", None
    for i in range(0, len(ids), size):
        piece = joiner.feed(ids[i : i + size])
        out, finish = out + piece.text, piece.finish
        assert words.startswith(out)
        if finish:
            break
    else:
        piece = joiner.finish(output())
        out += piece.text
    ends = [(n, s) for n in range(len(words) + 1) for s in stop if words[:n].endswith(s)]
    if not ends:
        assert (out, piece.finish) == (words, "length")
    else:
        assert (piece.finish, piece.stop in stop) == ("stop", True)
        assert all(s not in out.removesuffix(piece.stop) for s in [piece.stop])
        assert out.endswith(piece.stop) or not joined
        assert words.startswith(out + (piece.stop if not joined else ""))


def test_tokens_are_spelled_with_all_their_bytes(fallback):
    text = text_of("tiny-v4")
    spell = Spelling(text)
    for i in range(text.vocab_size):
        raw = spell.bytes(i)
        assert raw
        assert raw.decode("utf-8", "replace") == text.decode([i], skip_special_tokens=False)
    (half,) = [i for i in range(300) if spell.bytes(i) == b"\xe2"]
    assert spell.text(half) == "bytes:\\xe2"
    assert Spelling(fallback).bytes(2 + 0xE2) == b"\xe2"
