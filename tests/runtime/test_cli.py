"""``pipeline-run`` as a user meets it: bad input, JSON, several prompts, streams, plans, signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftline.compiler.plan import Plan
from draftline.runtime.cli import main
from draftline.stages.models.registry import PACKAGED

KEYS = [
    "prompt",
    "text",
    "token_ids",
    "finish_reason",
    "num_steps",
    "num_draft_tokens",
    "num_accepted_tokens",
    "acceptance_per_position",
    "mean_acceptance_length",
    "num_speculative_tokens",
    "timing",
]
PROMPTS = ["def main():\n", "class Stack:\n    def push(self, item):\n", "import os", "The following table lists"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(capsys):
    """``run("-K", "3", …)`` gives (exit code, stdout, stderr)."""

    def call(*argv: str) -> tuple[int, str, str]:
        code = main(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def objects(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def config(**changes: object) -> str:
    return json.dumps({"method": "mtp", "num_speculative_tokens": 3, **changes})


BAD = [
    (["-K", "-1"], "-K is '-1'; an integer of 0 or more"),
    (["-K", "2.5"], "-K is '2.5'; an integer of 0 or more"),
    (["-K", "three"], "-K is 'three'; an integer of 0 or more"),
    (["-K", "true"], "-K is 'true'; an integer of 0 or more"),
    (["-K", ""], "-K is ''; an integer of 0 or more"),
    (
        ["-K", "3", "--no-enable-mtp"],
        "--no-enable-mtp asks for plain decoding and --num-speculative-tokens/-K says K=3",
    ),
    (["-K", "0", "--enable-mtp"], "--enable-mtp asks for speculation and --num-speculative-tokens/-K says K=0"),
    (["-K", "5", "--speculative-config", config()], "-K says K=5 and --speculative-config says K=3"),
    (["--speculative-config", config(), "--no-enable-mtp"], "and --speculative-config says K=3; give one of them"),
    (["--speculative-config", config(num_speculative_tokens=True)], "num_speculative_tokens is true; an integer"),
    (["--speculative-config", config(num_speculative_tokens=1.0)], "num_speculative_tokens is 1.0; an integer"),
    (["--speculative-config", config(num_speculative_tokens=-2)], "num_speculative_tokens is -2; an integer"),
    (["--speculative-config", config(num_speculative_tokens="3")], 'num_speculative_tokens is "3"; an integer'),
    (["--speculative-config", '{"method": "mtp"}'], "num_speculative_tokens is missing"),
    (["--speculative-config", config(method="mpt")], "method is 'mpt'; did you mean 'mtp'"),
    (["--speculative-config", config(metod="mtp")], "unknown key 'metod'; did you mean 'method'"),
    (["--speculative-config", "[3]"], "a JSON object is wanted"),
    (["--speculative-config", "{3"], "--speculative-config: not JSON"),
    (["--graph", "ngram.yaml", "--speculative-config", config()], "the method needs stage 'draft.mtp', graph 'ngram'"),
    (["--graph", "ar.yaml", "-K", "2"], "graph 'ar' has no draft stage; use -K 0"),
    (["--graph", "mpt.yaml"], "mpt.yaml: no such file, and no packaged graph of that name; did you mean 'mtp.yaml'"),
    (
        ["--model", "tiny-v5"],
        "model 'tiny-v5': no such folder, and no packaged or fetched model of that name; did you mean 'tiny-v4'",
    ),
    (["--model", "."], "model '.': the folder has no config.json"),
    (["--tile", "0"], "--tile is '0'; an integer of 1 or more"),
    (["--max-new-tokens", "-3"], "--max-new-tokens is '-3'; an integer of 1 or more"),
    (["--max-num-seqs", "x"], "--max-num-seqs is 'x'; an integer of 1 or more"),
    (["--max-model-len", "99999"], "--max-model-len 99999 is more than the model's max_position_embeddings=2048"),
    (["--dtype", "fp16"], "invalid choice: 'fp16'"),
    (["--runtime", "zmq2"], "invalid choice: 'zmq2'"),
    (["--promt", "x"], "unrecognized arguments: --promt x; did you mean '--prompt'"),
    (["--prompt", ""], "--prompt 2: the prompt is empty"),
    (["--prompt", "bad \udce9 bytes"], "--prompt 2: the prompt is not valid UTF-8"),
    (["--prompt-file", "nowhere.jsonl"], "--prompt-file nowhere.jsonl: cannot be read"),
    (["--set", "settings.tyle=4"], "unknown key 'tyle' at settings; did you mean 'tile'"),
    (["--set", "settings.page_size=6"], "page_size=6 must be a multiple of the model's compression ratio 4"),
    (
        ["--set", "settings.max_num_seqs=900000000", "--max-num-seqs", "900000000"],
        "do not fit into memory; lower --max-n",
    ),
    (["--graph", "ngram.yaml", "--set", "nodes.draft.options.max_ngram=x"], "node 'draft': option 'max_ngram' is 'x'"),
    (["--graph", "ngram.yaml", "--set", "nodes.draft.options.max_ngram=0"], "1 ≤ min_ngram ≤ max_ngram is wanted"),
    (["--json", "--stream"], "--json prints whole objects and --stream prints parts"),
    (["--dump-ir=layuot"], "--dump-ir: unknown pass 'layuot'; did you mean 'layout'"),
    (["--plan-cache", "x", "--no-plan-cache"], "--plan-cache names a cache and --no-plan-cache wants none"),
    (["--max-model-len", "16", "--prompt", "word " * 40], "tokens, the context holds max_model_len=16"),
]


@pytest.mark.parametrize(("flags", "says"), BAD, ids=[" ".join(f)[:40] for f, _ in BAD])
def test_bad_input_is_one_clear_line_and_exit_2(run, flags, says):
    code, out, err = run("--prompt", "x", *flags)
    lines = [line for line in err.splitlines() if "warning" not in line]
    assert (code, out, len(lines)) == (2, "", 1), err
    assert lines[0].startswith("pipeline-run: error: ")
    assert says in lines[0]


def test_no_prompt(run):
    assert run() == (2, "", "pipeline-run: error: no prompt; give --prompt TEXT or --prompt-file F.jsonl\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", ":2: not JSON"),
        ("[]", ":2: a JSON object is wanted"),
        ('{"promt": "x"}', ":2: unknown key 'promt'; did you mean 'prompt'"),
        ('{"prompt": 3}', ":2: 'prompt' is missing or not a string"),
        ('{"prompt": ""}', ":2: the prompt is empty"),
        ('{"prompt": "x", "max_new_tokens": true}', ":2: max_new_tokens is true; an integer of 1 or more"),
        ('{"prompt": "x", "num_speculative_tokens": -1}', ":2: num_speculative_tokens is -1"),
    ],
)
def test_bad_prompt_file_names_the_line(run, tmp_path, line, says):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    code, out, err = run("--prompt-file", str(path))
    assert (code, out) == (2, "")
    assert f"{path}{says}" in err


# -- models ------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path) -> Path:
    return Path(shutil.copytree(PACKAGED / "tiny-v4", tmp_path / "model"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_k_on_a_model_without_mtp_names_every_flag(run, copied):
    edit_config(copied, num_nextn_predict_layers=0)
    edit_tensors(copied, lambda t: [t.pop(n) for n in list(t) if n.startswith("mtp.")])
    code, out, err = run("--model", str(copied), "--prompt", "x", "-K", "2")
    assert (code, out) == (2, "")
    for flag in ("--num-speculative-tokens", "-K", "--speculative-config", "--enable-mtp", "num_speculative_tokens"):
        assert flag in err
    assert "has no MTP layer" in err
    assert run("--model", str(copied), "--prompt", "x", "-K", "0", "--max-new-tokens", "2")[0] == 0
    assert run("--model", str(copied), "--graph", "ngram.yaml", "--prompt", "x", "--max-new-tokens", "2")[0] == 0


def broken_weights():
    def missing(t):
        t.pop("layers.1.attn.wq_a.weight"), t.pop("norm.weight")

    def extra(t):
        t["layers.9.attn.wq_a.weight"] = torch.zeros(2)

    def shaped(t):
        t["embed.weight"] = torch.zeros(4096, 191, dtype=torch.bfloat16)

    def typed(t):
        t["layers.0.ffn.gate.tid2eid"] = t["layers.0.ffn.gate.tid2eid"].float()

    return [
        (missing, ["2 problem(s)", "missing: layers.1.attn.wq_a.weight", "missing: norm.weight"]),
        (extra, ["not part of this model: layers.9.attn.wq_a.weight in model.safetensors"]),
        (shaped, ["shape: embed.weight in model.safetensors is [4096, 191], wanted [4096, 192]"]),
        (typed, ["dtype: layers.0.ffn.gate.tid2eid in model.safetensors is torch.float32"]),
    ]


@pytest.mark.parametrize(("change", "says"), broken_weights(), ids=["missing", "extra", "shape", "dtype"])
def test_wrong_tensors_are_listed_by_name(run, copied, change, says):
    edit_tensors(copied, change)
    code, out, err = run("--model", str(copied), "--prompt", "x")
    assert (code, out) == (2, "")
    assert all(s in err for s in says), err


def test_broken_model_folders(run, copied):
    def says(text: str) -> None:
        code, out, err = run("--model", str(copied), "--prompt", "x")
        assert (code, out) == (2, "")
        assert text in err, err

    weights = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    says("truncated or corrupt safetensors file")
    (copied / "model.safetensors").write_bytes(b"")
    says("truncated or corrupt safetensors file")
    (copied / "model.safetensors").unlink()
    says("holds neither model.safetensors nor model.safetensors.index.json")
    (copied / "tokenizer.json").write_text("{}")
    says("not a tokenizer")
    (copied / "tokenizer.json").unlink()
    says("no such file; a model directory holds tokenizer.json")
    edit_config(copied, hidden_size=-1, head_dim="x")
    says("hidden_size: ")
    edit_config(copied, model_type="llama")
    (copied / "config.json").write_text("{")
    says("not readable as JSON")


# -- good runs -----------------------------------------------------------------------------------------------------


def many(k: int, dtype: str = "fp32", *more: str) -> list[str]:
    return [*(f for p in PROMPTS for f in ("--prompt", p)), "-K", str(k), "--dtype", dtype, "--json", *more]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_json_is_one_object_per_prompt_and_the_tokens_are_those_of_k0(run, dtype):
    code, out, err = run(*many(0, dtype, "--max-new-tokens", "24"))
    assert (code, err) == (0, "")
    plain = objects(out)
    assert [o["prompt"] for o in plain] == PROMPTS
    for k in (1, 3, 9):
        code, out, err = run(*many(k, dtype, "--max-new-tokens", "24", "--max-num-seqs", "3"))
        assert (code, err) == (0, "")
        fast = objects(out)
        assert [list(o) for o in fast] == [KEYS] * len(PROMPTS)
        for o, truth in zip(fast, plain, strict=True):
            for key in ("prompt", "text", "token_ids", "finish_reason"):
                assert o[key] == truth[key]
            assert o["num_speculative_tokens"] == k
            assert len(o["acceptance_per_position"]) == k
            assert all(0 <= a <= 1 for a in o["acceptance_per_position"])
            assert o["num_accepted_tokens"] <= o["num_draft_tokens"] <= k * o["num_steps"]
            assert len(o["token_ids"]) <= o["num_accepted_tokens"] + o["num_steps"]
            assert o["mean_acceptance_length"] == pytest.approx(len(o["token_ids"]) / o["num_steps"], abs=1e-4)
            assert set(o["timing"]) == {"prefill", "decode"}
            assert min(o["timing"].values()) >= 0
    assert sum(o["num_accepted_tokens"] for o in fast) > 0  # a trained MTP layer gets something right


def test_prompt_as_long_as_the_context_gives_no_token(run, tmp_path):
    from draftline.runtime.text import Text

    n = len(Text(PACKAGED / "tiny-v4").encode(PROMPTS[1]))
    for length, tokens in ((n, 0), (n + 1, 1), (n + 3, 3)):
        code, out, _ = run("--prompt", PROMPTS[1], "--max-model-len", str(length), "--json", "--ignore-eos")
        [o] = objects(out)
        assert (code, len(o["token_ids"]), o["finish_reason"]) == (0, tokens, "context")


def test_prompt_file_with_limits_of_its_own(run, tmp_path):
    path = tmp_path / "p.jsonl"
    lines = [
        {"prompt": PROMPTS[0] + "\u2028"},
        {"prompt": PROMPTS[1], "max_new_tokens": 3, "num_speculative_tokens": 0},
    ]
    path.write_text("\n\n".join(json.dumps(x, ensure_ascii=False) for x in lines), "utf-8")
    code, out, _ = run("--prompt-file", str(path), "--json", "--ignore-eos", "--max-new-tokens", "6", "-K", "3")
    first, second = objects(out)
    assert code == 0
    assert (len(first["token_ids"]), len(second["token_ids"])) == (6, 3)
    assert (second["num_draft_tokens"], second["num_speculative_tokens"]) == (0, 0)
    assert second["acceptance_per_position"] == []


def test_stream_prints_the_same_text(run):
    flags = [f for p in PROMPTS[:3] for f in ("--prompt", p)] + ["--max-new-tokens", "20"]
    assert run(*flags, "--stream")[1] == run(*flags)[1]


def test_flags_that_say_k(run):
    def k_of(*flags: str) -> tuple[int, str]:
        code, out, err = run("--prompt", "x = ", "--max-new-tokens", "2", "--json", *flags)
        assert code == 0
        return objects(out)[0]["num_speculative_tokens"], err

    assert k_of()[0] == 3  # the graph's own
    assert k_of("-K", "5")[0] == 5
    assert k_of("-K", "2", "--set", "settings.num_speculative_tokens=7")[0] == 2
    assert k_of("--set", "settings.num_speculative_tokens=7")[0] == 7
    assert k_of("--speculative-config", config(num_speculative_tokens=4))[0] == 4
    assert k_of("--speculative-config", config(), "-K", "3")[0] == 3
    assert k_of("-K", "6", "--enable-mtp")[0] == 6  # an explicit K wins
    assert k_of("--no-enable-mtp") == (0, "")
    k, err = k_of("--enable-mtp")
    assert (k, "deprecated" in err) == (1, True)
    assert k_of("-K", "3000")[0] == 3000  # more than the context can use


# -- looking inside ----------------------------------------------------------------------------------------------


def test_explain(run):
    code, out, err = run("-K", "9", "--explain")
    assert (code, "plan cache miss" in err) == (0, True)
    for said in ("layout B1xS8", "T=8", "active width 8", "active width 2", "rejected B2xS4", "segments (", "assumed"):
        assert said in out
    assert "plan cache hit" in run("-K", "9", "--explain")[2]
    code, out, err = run("-K", "3", "--tile", "16", "--explain")
    assert "layout B4xS4  T=16" in out
    assert "rule RowsCapped" in out
    assert "K" in err.split("plan cache miss")[1]  # says what changed


def test_tools_formats(run):
    code, out, _ = run("-K", "3", "--emit", "json")
    plan = Plan.from_json(out)
    assert (code, str(plan.layout.chosen), plan.num_speculative_tokens) == (0, "B2xS4", 3)
    assert run("--emit", "mermaid")[1].startswith("flowchart")
    assert run("--emit", "dot")[1].startswith("digraph")
    assert "layout B2xS4, 1 chunks" in run("--dump-ir=layout")[1]
    whole = run("--dump-ir")[1]
    assert [whole.index(f"after {name}") for name in ("bind", "unroll", "layout", "chunk", "buffers", "schedule")]
    jsonschema.Draft202012Validator.check_schema(json.loads(run("--schema")[1]))
    assert "draft (draft.mtp) ×K" in run("--picture", "text")[1]
    code, out, err = run("--prompt", "x", "--json", "--explain", "--max-new-tokens", "2")
    assert len(objects(out)) == 1
    assert "layout" in err


# -- as a process ------------------------------------------------------------------------------------------------


def script() -> str:
    return str(Path(sys.executable).with_name("pipeline-run"))


def test_as_a_command_elsewhere_leaves_nothing_behind(tmp_path):
    work = tmp_path / "elsewhere"
    work.mkdir()
    done = subprocess.run(
        [script(), "--graph", "mtp.yaml", "--prompt", "def main():", "--max-new-tokens", "8", "--no-plan-cache"],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("def main():")
    assert "tokens/s" in done.stderr
    assert list(work.iterdir()) == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.alone
def test_ctrl_c_ends_quietly_and_soon(tmp_path):
    flags = ["--prompt", "def main():", "--max-new-tokens", "900", "--stream", "--ignore-eos", "-K", "0"]
    process = subprocess.Popen(
        [script(), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    process.stdout.read(30)  # it is decoding
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 2
    assert err.decode().splitlines()[-1] == "pipeline-run: interrupted"
    assert "Traceback" not in err.decode()


def test_a_reader_that_goes_away_is_no_crash():
    flags = " ".join(f"--prompt 'line {i}'" for i in range(3))
    done = subprocess.run(
        f"{script()} {flags} --max-new-tokens 30 --json --ignore-eos | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
