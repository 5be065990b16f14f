"""What a request asks of the sampler reaches it, and what it tells comes back."""

from __future__ import annotations

import math

import pytest
from serving import Server, streamed

PROMPT = "def read_lines(path):"
CHAT = {"messages": [{"role": "user", "content": "def read_lines(path):"}]}


def texts(server: Server, **options) -> list[str]:
    got = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 16, **options})
    assert got.status_code == 200, got.text
    return [c["text"] for c in got.json()["choices"]]


def test_a_seed_gives_the_same_text_at_every_depth_and_another_seed_another(server: Server):
    one = texts(server, seed=1)
    assert one == texts(server, seed=1) == texts(server, seed=1, num_speculative_tokens=0)
    assert one != texts(server, seed=2)
    assert one != texts(server, temperature=0)


def test_n_choices_differ_and_the_first_is_that_of_one(server: Server):
    four = texts(server, seed=7, n=4)
    assert len(set(four)) > 1
    assert four[0] == texts(server, seed=7)[0]
    assert four == texts(server, seed=7, n=4)


def test_without_a_seed_texts_differ(server: Server):
    assert len({texts(server, temperature=1.5)[0] for _ in range(4)}) > 1


def test_narrow_choices_are_greedy(server: Server):
    greedy = texts(server, temperature=0)
    assert texts(server, top_k=1) == texts(server, top_p=1e-9) == texts(server, min_p=1.0) == greedy


def test_bias_bad_words_and_penalties(server: Server, plain):
    greedy = texts(server, temperature=0)[0]
    (first, *_) = plain.text.encode(greedy)
    banned = texts(server, temperature=0, logit_bias={str(first): -100})[0]
    assert plain.text.encode(banned)[0] != first
    (wanted,) = plain.text.encode("def")
    assert texts(server, temperature=0, logit_bias={str(wanted): 100})[0] == "def" * 16
    assert "file" in greedy
    assert "file" not in texts(server, temperature=0, bad_words=["file"])[0]
    for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 2}):
        assert texts(server, temperature=0, max_tokens=60, **penalty) != texts(server, temperature=0, max_tokens=60)


def test_stop_tokens_and_min_tokens(server: Server, plain):
    ids = plain.text.encode(texts(server, temperature=0)[0])
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "stop_token_ids": [ids[4]]}
    choice = server.post("/v1/completions", body).json()
    assert (choice["choices"][0]["finish_reason"], choice["choices"][0]["stop_reason"]) == ("stop", ids[4])
    assert choice["usage"]["completion_tokens"] == ids.index(ids[4]) + 1
    longer = server.post("/v1/completions", {**body, "min_tokens": 12}).json()
    assert longer["usage"]["completion_tokens"] >= 12


@pytest.mark.parametrize("k", [0, 3])
def test_logprobs_of_completions(server: Server, k):
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 2, "num_speculative_tokens": k}
    choice = server.post("/v1/completions", body).json()["choices"][0]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert [choice["text"][o:].startswith(t) for o, t in zip(found["text_offset"], found["tokens"], strict=True)]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"]) == 12
    for token, logprob, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert logprob <= 0
        assert top[token] == logprob == max(top.values()), "greedy: the likeliest"
        assert sum(map(math.exp, top.values())) <= 1.0001
    chunks = streamed(server, body)
    parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [t for p in parts for t in p["tokens"]] == found["tokens"]
    assert [o for p in parts for o in p["text_offset"]] == found["text_offset"]
    assert [x for p in parts for x in p["token_logprobs"]] == pytest.approx(found["token_logprobs"], abs=1e-6)


def test_logprobs_of_chats(server: Server):
    client = server.client().chat.completions
    got = client.create(model="tiny", **CHAT, max_tokens=10, temperature=0, logprobs=True, top_logprobs=3)
    content = got.choices[0].logprobs.content
    assert "".join(bytes(e.bytes).decode() for e in content) == got.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob
    bare = client.create(model="tiny", **CHAT, max_tokens=3, temperature=0, logprobs=True)
    assert [e.top_logprobs for e in bare.choices[0].logprobs.content] == [[], [], []]
    chunks = client.create(
        model="tiny", **CHAT, max_tokens=10, temperature=0, logprobs=True, top_logprobs=3, stream=True
    )
    streams = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [e.token for e in streams] == [e.token for e in content]
