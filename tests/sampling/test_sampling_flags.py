"""pipeline-run: flags and prompt keys reach the sampler, and bad ones are one line that names them."""

from __future__ import annotations

import json

import pytest

from draftline.runtime.cli import main

RUN = ["--max-new-tokens", "8", "--no-plan-cache", "--ignore-eos", "--json"]


def lines(capsys, *args: str) -> list[dict]:
    assert main([*RUN, *args]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_seed_gives_the_same_text_at_every_depth_and_none_gives_another(capsys):
    hot = ["--prompt", "import ", "--temperature", "1.5"]
    [plain] = lines(capsys, *hot, "--seed", "5", "-K", "0")
    [deep] = lines(capsys, *hot, "--seed", "5", "-K", "5")
    assert plain["token_ids"] == deep["token_ids"]
    [other], [another] = lines(capsys, *hot, "-K", "0"), lines(capsys, *hot, "-K", "0")
    assert len({tuple(o["token_ids"]) for o in (plain, other, another)}) == 3


def test_a_prompts_own_keys_win(capsys, tmp_path):
    path = tmp_path / "p.jsonl"
    wanted = [{}, {"temperature": 0}, {"seed": 6}, {"top_k": 1}, {"logprobs": 2}, {"top_p": None}]
    path.write_text("".join(json.dumps({"prompt": "import ", **own}) + "\n" for own in wanted))
    flags = ["--temperature", "1.5", "--seed", "5", "--top-p", "0.99", "--min-p", "0.001"]
    got = lines(capsys, "--prompt-file", str(path), *flags)
    [greedy] = lines(capsys, "--prompt", "import ")
    ids = [one["token_ids"] for one in got]
    assert ids[1] == ids[3] == greedy["token_ids"]
    assert ids[0] == ids[4] == ids[5]
    assert len({tuple(i) for i in ids}) == 3
    assert [("logprobs" in one) for one in got] == [False, False, False, False, True, False]
    for token, one in zip(got[4]["token_ids"], got[4]["logprobs"], strict=True):
        assert one["token_id"] == token
        assert one["logprob"] < 0
        assert len(one["top"]) == 2
        assert one["top"][0]["logprob"] >= one["logprob"]
        assert (one["rank"] == 1) == (one["top"][0]["token_id"] == token)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--temperature", "-1"], "--temperature is '-1'; a number of 0 (greedy) or more is wanted"),
        (["--temperature", "nan"], "--temperature is 'nan'; a number of 0"),
        (["--top-p", "0"], "--top-p is '0'; a number above 0 and at most 1 is wanted"),
        (["--top-k", "2.5"], "--top-k is '2.5'; an integer of 1 or more"),
        (["--min-p", "two"], "--min-p is 'two'; a number from 0 to 1 is wanted"),
        (["--seed", "18446744073709551616"], "an integer of at most 64 bits is wanted"),
        (["--logprobs", "3"], "--logprobs is for --json"),
        (["--json", "--logprobs", "21"], "--logprobs is '21'; an integer from 0 to 20 is wanted"),
    ],
)
def test_bad_flags(capsys, flags, says):
    assert main(["--prompt", "x", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pipeline-run: error: ")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "value"), [("temperature", -1), ("top_k", True), ("top_p", "x"), ("seed", 0.5), ("min_p", 2)]
)
def test_bad_keys_name_the_line(capsys, tmp_path, key, value):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n' + json.dumps({"prompt": "b", key: value}) + "\n")
    assert main(["--prompt-file", str(path)]) == 2
    assert f"p.jsonl:2: {key} is {json.dumps(value)}; " in capsys.readouterr().err
