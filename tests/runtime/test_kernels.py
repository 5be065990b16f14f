"""Choosing kernels as a user does: a machine without a compiler, a cut-off cache, a model without native kernels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import folders
import pytest
import torch

from draftline.runtime.cli import main
from draftline.runtime.pipeline import open_pipeline
from draftline.runtime.training.cli import LAYER_KEYS
from draftline.runtime.training.loop import initial
from draftline.runtime.training.write import write_head
from draftline.stages.models.llama.config import parse_config
from draftline.stages.models.llama.weights import assemble, tensor_specs
from draftline.stages.models.mtp_head.config import HeadConfig
from draftline.stages.models.places import PACKAGED_HEADS, cache_root
from draftline.stages.weights.files import load


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return folders.tiny_llama(tmp_path_factory.mktemp("llama") / "model")


def run(model: Path | str, cache: Path, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``pipeline-run`` in a process of its own: kernels are loaded once per process."""
    words = [sys.executable, "-m", "draftline.runtime.cli", "--graph", "ar.yaml", "--model", str(model)]
    words += ["--prompt", "def f(x):", "--max-new-tokens", "5", "--max-model-len", "64", "--ignore-eos", "--json"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **env}
    return subprocess.run([*words, *flags], capture_output=True, text=True, timeout=120, env=environment)


def tokens(done: subprocess.CompletedProcess[str]) -> list[int]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["token_ids"]


def test_without_a_compiler_it_runs_on_the_reference_and_says_so(model, tmp_path):
    done = run(model, tmp_path, CXX="/no/such/compiler")
    assert tokens(done) == tokens(run(model, tmp_path, "--kernels", "reference"))
    assert "/no/such/compiler cannot be run: No such file or directory" in done.stderr
    assert done.stderr.count("falling back to the reference kernels") == 1
    assert not (tmp_path / "draftline" / "kernels").exists()


@pytest.mark.parametrize("runtime", ["inline", "zmq"])
@pytest.mark.parametrize(("cxx", "said"), [("/no/such/compiler", "cannot be run"), ("/bin/false", "exit code 1")])
def test_native_kernels_that_cannot_be_had_are_an_error(model, tmp_path, cxx, said, runtime):
    done = run(model, tmp_path, "--kernels", "native", "--runtime", runtime, CXX=cxx)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert "--kernels reference needs no compiler" in done.stderr


def test_a_cut_off_file_in_the_cache_is_compiled_anew(model, tmp_path):
    """Loading it would end the process with a bus error."""
    truth = tokens(run(model, cache_root().parent, "--kernels", "native"))
    mine = tmp_path / "draftline" / "kernels"
    mine.mkdir(parents=True)
    for path in (cache_root() / "kernels").glob("*.so"):  # others may be compiling there
        shutil.copy2(path, mine)
    before = {p: p.stat().st_mtime_ns for p in mine.iterdir()}
    assert tokens(run(model, tmp_path, "--kernels", "native")) == truth
    assert {p: p.stat().st_mtime_ns for p in mine.iterdir()} == before  # nothing was compiled again
    wholes = {p: p.read_bytes() for p in before}
    for path, whole in wholes.items():
        path.write_bytes(whole[:1000])
    assert tokens(run(model, tmp_path, "--kernels", "native")) == truth
    assert sum(p.read_bytes() == whole for p, whole in wholes.items()) == 1


def test_a_cache_that_cannot_be_written_is_an_error(model, tmp_path):
    (tmp_path / "draftline").write_text("a file where a folder should be")
    done = run(model, tmp_path, "--kernels", "native", "--no-plan-cache")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "Not a directory" in done.stderr or "File exists" in done.stderr


def test_a_model_without_native_kernels_and_heads_that_do_not_fit(model, tmp_path, capsys):
    for flags, said in (
        (["--model", "tiny-v4", "--kernels", "native"], "no native kernels for this model"),
        (["--mtp", "nobody"], "no packaged head of that name; known: smollm2"),
        (["--mtp", str(PACKAGED_HEADS / "smollm2")], "hidden_size=576, the target 64"),
        (["--mtp", str(model)], "model_type is 'llama'"),
        (["--mtp", str(tmp_path)], "draftline-train-mtp writes one"),
    ):
        assert main(["--graph", "ar.yaml", "--model", str(model), "--prompt", "x", "--no-plan-cache", *flags]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
        assert said in err


@pytest.mark.parametrize("runtime", ["inline", "zmq"])
def test_a_truncated_or_missing_head_is_named(model, tmp_path, runtime):
    raw = {k: v for k, v in folders.CONFIG.items() if k in LAYER_KEYS} | {"num_hidden_layers": 1}
    config = HeadConfig("tiny", 512, 0, parse_config(raw))
    parameters = initial(config, _target(model), 0)
    write_head(tmp_path / "head", config, raw, parameters, None)
    flags = ["--mtp", str(tmp_path / "head"), "--graph", "mtp.yaml", "-K", "1", "--runtime", runtime]
    truth = tokens(run(model, cache_root().parent, *flags))
    assert truth == tokens(run(model, cache_root().parent))
    weights = tmp_path / "head" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for said in ("head/model.safetensors: truncated or corrupt", "head: holds neither model.safetensors nor"):
        done = run(model, cache_root().parent, *flags)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr
        weights.unlink(missing_ok=True)


def _target(model: Path):
    c = parse_config(folders.CONFIG)
    return c, assemble(c, load(model, tensor_specs(c), torch.float32, torch.device("cpu")))


def test_torch_keeps_off_the_cores_of_the_native_team(model):
    """The team has the threads that were asked for; torch's own would only take its cores."""
    with open_pipeline("ar.yaml", model=str(model), kernels="native", threads=2) as pipeline:
        assert torch.get_num_threads() == 1
        target = pipeline.engine.runtime.model.target
        assert target._stack._threads == target._output._threads == 2
    with open_pipeline("ar.yaml", model=str(model), kernels="reference", threads=2):
        assert torch.get_num_threads() == 2
