"""/v1/completions as its users see it: the openai client, curl, whole and streamed answers."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from serving import Server, streamed

PROMPT = "def read_lines(path):"
OTHERS = ["class Stack:", "import os\n", "# -*- coding"]


def test_the_openai_client_gets_the_text_of_plain_decoding(server: Server, greedy):
    got = server.client().completions.create(model="tiny", prompt=PROMPT, max_tokens=40, temperature=0)
    assert got.choices[0].text == greedy(PROMPT, 40)
    assert got.choices[0].finish_reason == "length"
    assert (got.object, got.model, got.id[:5]) == ("text_completion", "tiny", "cmpl-")
    assert got.usage is not None
    assert got.usage.model_dump(exclude_none=True) == {"prompt_tokens": 6, "completion_tokens": 40, "total_tokens": 46}


def test_the_openai_client_streams_the_same_text(server: Server, greedy):
    options = {"include_usage": True}
    stream = server.client().completions.create(
        model="tiny", prompt=PROMPT, max_tokens=40, temperature=0, stream=True, stream_options=options
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks[:-1]) == greedy(PROMPT, 40)
    assert len(chunks) > 10, "it came at once"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 40
    assert {c.usage for c in chunks[:-1]} == {None}
    assert len({c.id for c in chunks}) == 1


def test_curl(server: Server, greedy):
    curl = shutil.which("curl")
    assert curl is not None, "curl is what users try first"
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    head = [curl, "-sS", "-N", server.url + "/v1/completions", "-H", "Content-Type: application/json", "-d"]
    done = subprocess.run([*head, json.dumps(body)], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["choices"][0]["text"] == greedy(PROMPT, 12)
    done = subprocess.run(
        [*head, json.dumps({**body, "stream": True})], capture_output=True, text=True, timeout=60, check=True
    )
    parts = done.stdout.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    texts = [json.loads(p.removeprefix("data: "))["choices"][0]["text"] for p in parts[:-2]]
    assert "".join(texts) == greedy(PROMPT, 12)


def test_usage_in_every_chunk(server: Server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(server, {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "stream_options": options})
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 20
    assert all(c["usage"]["total_tokens"] == c["usage"]["completion_tokens"] + 6 for c in chunks)


def test_no_usage_unless_asked(server: Server):
    assert all("usage" not in c for c in streamed(server, {"prompt": PROMPT, "max_tokens": 3, "temperature": 0}))


@pytest.mark.parametrize("n", [1, 2])
def test_several_prompts_in_every_form(server: Server, greedy, plain, n):
    ids = [list(plain.text.encode(p)) for p in OTHERS]
    want = [greedy(p, 8) for p in OTHERS for _ in range(n)]
    for prompt in (OTHERS, ids):
        got = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, "n": n}).json()
        assert [c["text"] for c in got["choices"]] == want
        assert [c["index"] for c in got["choices"]] == list(range(len(want)))
        assert got["usage"]["prompt_tokens"] == sum(map(len, ids))
        assert got["usage"]["completion_tokens"] == 8 * len(want)
    assert server.text(ids[0], max_tokens=8) == want[0]
    chunks = streamed(server, {"prompt": OTHERS, "max_tokens": 8, "temperature": 0, "n": n})
    texts = [""] * len(want)
    for c in chunks:
        texts[c["choices"][0]["index"]] += c["choices"][0]["text"]
    assert texts == want


def test_echo(server: Server, greedy, plain):
    assert server.text(PROMPT, max_tokens=8, echo=True) == PROMPT + greedy(PROMPT, 8)
    ids = list(plain.text.encode(PROMPT))
    assert server.text(ids, max_tokens=8, echo=True) == PROMPT + greedy(PROMPT, 8)
    got = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 0, "echo": True}).json()
    assert got["choices"][0]["text"] == PROMPT
    assert got["usage"]["completion_tokens"] == 0
    chunks = streamed(server, {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "echo": True})
    assert "".join(c["choices"][0]["text"] for c in chunks) == PROMPT + greedy(PROMPT, 8)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", ["self", ["nowhere to be found", "file to"], 'the file."""\n        return'])
def test_stop_strings(server: Server, greedy, stop, include):
    whole = greedy(PROMPT, 40)
    end = min(whole.index(s) for s in ([stop] if isinstance(stop, str) else stop) if s in whole)
    found = next(s for s in ([stop] if isinstance(stop, str) else stop) if whole.startswith(s, end))
    want = whole[:end] + found * include
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stop": stop, "include_stop_str_in_output": include}
    got = server.post("/v1/completions", body).json()
    choice = got["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (want, "stop", found)
    assert got["usage"]["completion_tokens"] < 40
    chunks = streamed(server, body)
    assert "".join(c["choices"][0]["text"] for c in chunks) == want
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("k", [0, 1, 3, 99])
def test_depth_per_request_changes_no_text(server: Server, greedy, k):
    before = server.metric("vllm:spec_decode_num_draft_tokens_total")
    assert server.text(PROMPT, max_tokens=16, num_speculative_tokens=k) == greedy(PROMPT, 16)
    after = server.metric("vllm:spec_decode_num_draft_tokens_total")
    assert (after > before) == (k > 0)


def test_the_context_is_full(server: Server, plain):
    ids = [5] * 1000
    got = server.post("/v1/completions", {"prompt": ids, "max_tokens": 24, "temperature": 0, "ignore_eos": True}).json()
    assert got["usage"]["total_tokens"] == 1024
    assert got["choices"][0]["finish_reason"] == "length"
    refused = server.post("/v1/completions", {"prompt": ids, "max_tokens": 25})
    assert refused.status_code == 400
    assert all(n in refused.json()["error"]["message"] for n in ("1000", "25", "1024", "24"))


def test_models_version_health(server: Server):
    assert [m.id for m in server.client().models.list()] == ["tiny", "alias"]
    assert server.client().models.retrieve("alias").id == "alias"
    assert server.get("/v1/models/other").status_code == 404
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 1024
    assert server.get("/version").json()["version"]
    assert server.get("/health").status_code == 200
    assert server.text(PROMPT, max_tokens=2, model="alias")


def test_tokenize_and_back(server: Server, plain):
    got = server.post("/tokenize", {"model": "tiny", "prompt": PROMPT, "return_token_strs": True}).json()
    ids = list(plain.text.encode(PROMPT))
    assert (got["tokens"], got["count"], got["max_model_len"]) == (ids, len(ids), 1024)
    assert got["token_strs"][0] == "def"
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": PROMPT}
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json()
    assert server.post("/detokenize", {"tokens": chat["tokens"]}).json()["prompt"] == "# user: hi\n# assistant:"
