"""Stop strings: found at the token that completes them, by nobody before, whatever the tokens' borders."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.runtime.stopping import StopStrings, final_text
from draftline.runtime.text import Text
from draftline.stages.models.places import resolve

TEXT = Text(resolve("tiny-v4"))


def completed(text: str, stop: tuple[str, ...], min_tokens: int = 0) -> tuple[int, str] | None:
    """Tokens until one of the strings is complete, by decoding every prefix anew."""
    ids = TEXT.encode(text)
    for n in range(1, len(ids) + 1):
        whole, before = (TEXT.decode(ids[:m]).rstrip("\ufffd") for m in (n, n - 1))
        new = [(whole.find(s, max(0, len(before) - len(s) + 1)), i) for i, s in enumerate(stop)]
        new = [one for one in new if one[0] >= 0]
        if new and n > min_tokens:
            return n, stop[min(new)[1]]
    return None


def watched(text: str, stop: tuple[str, ...], min_tokens: int = 0) -> tuple[int, str] | None:
    strings = StopStrings(TEXT.stream(), stop, min_tokens)
    for n, token in enumerate(TEXT.encode(text), 1):
        found = strings.feed(token)
        if found is not None:
            return n, found
    return None


TEXTS = st.text(st.sampled_from("ab \n\u00e9\u4e2d("), max_size=20)
STOPS = st.lists(st.text(st.sampled_from("ab \n\u00e9("), min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=300, deadline=None)
@given(TEXTS, STOPS, st.integers(0, 4))
def test_the_token_that_completes_a_string_is_told(text, stop, min_tokens):
    assert watched(text, tuple(stop), min_tokens) == completed(text, tuple(stop), min_tokens)


@settings(max_examples=300, deadline=None)
@given(TEXTS, STOPS)
def test_the_final_text_ends_before_the_string(text, stop):
    ids = TEXT.encode(text)
    found = watched(text, tuple(stop))
    if found is not None:
        ids = ids[: found[0]]
    reason = None if found is None else found[1]
    final, kept = final_text(TEXT, ids, reason), final_text(TEXT, ids, reason, include=True)
    if reason is not None:
        assert not any(s in final for s in stop)
        assert kept == final + reason
    else:
        assert final == kept == TEXT.decode(ids)


def test_a_string_over_three_tokens():
    ids = TEXT.encode("def f(x): return y")
    assert len(ids) > 3
    text = TEXT.decode(ids)
    stop = text[3:-1]
    n, found = watched(text, (stop,)) or (0, "")
    assert found == stop
    assert final_text(TEXT, ids[:n], stop) == text[:3]
