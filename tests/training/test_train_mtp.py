"""``draftline-train-mtp`` as a user runs it, on a random Llama: killed on the way, and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import folders
import pytest
import torch
from safetensors.torch import save_file

from draftline.graph.errors import UsageError
from draftline.runtime.text import Text
from draftline.runtime.training.cli import LAYER_KEYS, main
from draftline.runtime.training.distil import frequent, held_out
from draftline.runtime.training.loop import Progress, Recipe, batches, train
from draftline.runtime.training.texts import ChatTemplate, prompts, sources
from draftline.stages.models.llama.config import parse_config
from draftline.stages.models.llama.weights import assemble, tensor_specs
from draftline.stages.models.mtp_head.config import HeadConfig
from draftline.stages.weights.files import load

DATA = str(Path(__file__).parent)
STEPS = 7
FLAGS = ["--tokens", "1", "--steps", str(STEPS), "--batch", "4", "--save-every", "2", "--threads", "1", "--json"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return folders.tiny_llama(tmp_path_factory.mktemp("llama") / "model")


def command(model: Path, out: Path, *more: str) -> list[str]:
    flags = ["--model", str(model), "--data", DATA, "--out", str(out), "--draft-vocab", "500", *FLAGS, *more]
    return [sys.executable, "-m", "draftline.runtime.training.cli", *flags]


def test_a_killed_run_goes_on_with_the_same_losses(model, tmp_path):
    whole = subprocess.run(command(model, tmp_path / "a"), capture_output=True, text=True, timeout=300)
    assert whole.returncode == 0, whole.stderr
    truth = [json.loads(line) for line in whole.stdout.splitlines()]
    assert [t.get("step") for t in truth] == [*range(1, STEPS + 1), None]
    final = truth[-1]
    assert final["prompts"] == 8
    assert 1.0 <= final["tokens_per_step"] <= 5.0
    assert len(final["per_position"]) == 4

    with subprocess.Popen(command(model, tmp_path / "b"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("step") == 4:  # its checkpoint is written before it says so
                process.send_signal(signal.SIGKILL)
                break
    assert not (tmp_path / "b").exists()  # no half head
    again = subprocess.run(command(model, tmp_path / "b"), capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    rest = [json.loads(line) for line in again.stdout.splitlines()]
    first = rest[0]["step"]
    assert first >= 5
    assert rest[:-1] == truth[first - 1 : STEPS]
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert a == b


def test_it_learns(model, tmp_path):
    """Eight texts over and over: it comes to know what the target says about them."""
    raw = {k: v for k, v in folders.CONFIG.items() if k in LAYER_KEYS} | {"num_hidden_layers": 1}
    c, head = parse_config(folders.CONFIG), HeadConfig("tiny", 512, 0, parse_config(raw))
    target = c, assemble(c, load(model, tensor_specs(c), torch.float32, torch.device("cpu")))
    tokens = torch.randint(2, 500, (9, 24), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    lengths = torch.full((9,), 24, dtype=torch.int32)
    save_file({"tokens": tokens, "prompt": lengths.clone(), "length": lengths}, tmp_path / "0.safetensors")
    seen: list[Progress] = []
    vocab, recipe = torch.arange(500), Recipe(steps=80, batch=8, depth=2, lr=0.01)
    train(head, target, [tmp_path / "0.safetensors"], vocab, recipe, tmp_path, seen.append)
    assert seen[-1].loss < seen[0].loss  # it cannot fall below the entropy of what the target says
    assert max(seen[0].agree) < 0.2
    assert min(seen[-1].agree) > 0.6


def test_another_run_does_not_take_over_a_checkpoint(model, tmp_path, capsys):
    flags = command(model, tmp_path / "head", "--eval-prompts", "0")[3:]
    assert main(flags) == 0
    assert main([*flags, "--lr", "0.5"]) == 2
    assert "lr=0.0015, now 0.5 is asked for" in capsys.readouterr().err
    assert main([*flags, "--draft-vocab", "400"]) == 2
    assert "is of another head" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--batch", "57"], "--batch is 57; at most 56"),
        (["--steps", "0"], "--steps is 0; 1 or more"),
        (["--self-instruct", "2"], "a share from 0 to 1"),
        (["--lr", "-1"], "--lr is -1.0"),
        (["--data", "/no/such/path"], "no such file or folder"),
        (["--model", "tiny-v4"], "heads are trained for llama"),
        (["--model", "nobody"], "no such folder"),
    ],
)
def test_bad_flags_are_one_clear_line(model, tmp_path, capsys, flags, said):
    assert main([*command(model, tmp_path / "head")[3:], *flags]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_prompts_of_every_kind(model, tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": "def read_lines(path): # and so on, and on"}\n\n'
        '{"messages": [{"role": "user", "content": "How many lines are there in a file of nine lines?"}]}\n'
    )
    text, template = Text(model), ChatTemplate.of(model)
    assert template is not None
    assert template.opening() == ("<user>", "<assistant>")
    made = prompts(sources([tmp_path / "a.jsonl"]), text, template, 100, 0)
    said = {text.decode(next(made)) for _ in range(20)}
    assert said == {
        "def read_lines(path): # and so on, and on",
        "<user>How many lines are there in a file of nine lines?<assistant>",
    }
    (tmp_path / "b.jsonl").write_text('{"question": 1}\n')
    with pytest.raises(UsageError, match=r"b\.jsonl:1"):
        next(prompts([tmp_path / "b.jsonl"], text, template, 100, 0))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="endings that are looked for"):
        sources([tmp_path / "empty"])


@pytest.mark.parametrize("batch", [4, 5, 56])
def test_held_out_texts_are_never_trained_on(tmp_path, batch):
    """Every text has a token of its own; an epoch sees each trained text once at most, and no held-out one ever."""
    for number in range(3):
        own = torch.arange(64, dtype=torch.int32)[:, None] + 64 * number
        lengths = torch.full((64,), 6, dtype=torch.int32)
        save_file(
            {"tokens": own.expand(64, 6).contiguous(), "prompt": lengths.clone(), "length": lengths},
            tmp_path / f"{number}.st",
        )
    shards = sorted(tmp_path.iterdir())
    kept = {prompt[0] for prompt in held_out(shards)}
    assert len(kept) == 3 * 8
    steps = 3 * (56 // batch)
    made = batches(shards, Recipe(steps=2 * steps, batch=batch), 0)
    epochs = [[int(t) for _ in range(steps) for t in next(made)[0][:, 0]] for _ in range(2)]
    for seen in epochs:
        assert len(seen) == len(set(seen)) == steps * batch
        assert not kept & set(seen)
    assert batch == 56 or epochs[0] != epochs[1]


def test_frequent_tokens_are_counted(tmp_path):
    tokens = torch.tensor([[5, 5, 7, -1], [7, 5, 2, 9]], dtype=torch.int32)
    save_file({"tokens": tokens}, tmp_path / "x.safetensors")
    vocab, share = frequent([tmp_path / "x.safetensors"], 10, 2)
    assert vocab.tolist() == [5, 7]
    assert share == pytest.approx(5 / 7)
