"""Capture backend ``inductor``: lossless in itself, nothing compiled after warm-up, refusals in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import folders
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from draftline.compiler.capture import backend, check_backend
from draftline.compiler.inductor import Inductor, StaticCall
from draftline.graph.errors import CapacityError, PlanError, UsageError
from draftline.graph.yaml import load_graph
from draftline.runtime.cli import main
from draftline.runtime.pipeline import Pipeline, open_pipeline
from draftline.runtime.settings import merge
from draftline.stages.models.core import Rows
from draftline.stages.sampling.params import Grammar, SamplingParams

PROMPTS = ["def read_lines(path):\n    ", "class Stack:\n    def __init__(self):\n", "import os\nimport sys\n\nfor"]
NEW = 24
WISHES = {
    "model": "tiny-v4",
    "capture": "inductor",
    "num_speculative_tokens": 9,
    "max_num_seqs": 2,
    "max_model_len": 128,
    "prefill_tile": 8,  # as the tile: prefill and verify are one compiled call
    "threads": 2,  # a split over threads must not show either
}


@pytest.fixture(autouse=True)
def _two_threads(_threads) -> None:
    """As the deployments are opened: what a product of matrices splits over threads must not show either."""
    torch.set_num_threads(2)


def compilations() -> int:
    """Graphs that torch.compile ever saw in this process."""
    return int(counters["stats"]["unique_graphs"])


def decode(pipeline: Pipeline, k: int, prompts: list[str] = PROMPTS) -> list[tuple[int, ...]]:
    outputs = pipeline.generate(prompts, max_new_tokens=NEW, num_speculative_tokens=k, ignore_eos=True)
    return [o.token_ids for o in outputs]


@pytest.fixture(scope="module")
def opened() -> Iterator[Pipeline]:
    """tiny-v4 with plans for K = 0, 1, 3, 7, 9, and nothing decoded yet."""
    with open_pipeline("mtp.yaml", **WISHES) as pipeline:
        for cache in pipeline.engine.runtime.model.target.caches:
            for name, t in vars(cache).items():
                # The last row is what pad rows write.
                assert t is None or not t[:-1].any(), f"warm-up wrote into {name}"
        yield pipeline


@pytest.fixture(scope="module")
def plain(opened) -> list[tuple[int, ...]]:
    return decode(opened, 0)


@pytest.fixture
def twin(opened) -> SimpleNamespace:
    """The target with compiled calls, as the stages hold it."""
    runtime = opened.engine.runtime
    return runtime._backends["inductor"].models(runtime.model).target


@pytest.mark.parametrize("k", [1, 3, 4, 9])
def test_tokens_equal_plain_decoding_and_nothing_is_compiled(opened, plain, k):
    runtime, waves = opened.engine.runtime, opened.engine.runtime.totals.waves
    before, captured = compilations(), runtime.captures
    assert decode(opened, k) == plain
    assert (compilations(), runtime.captures) == (before, captured)
    assert runtime.totals.waves > waves
    assert before >= 6  # target: forward, greedy; drafter: forward of 20, 2 and 8 rows, greedy


def test_grammars_are_served_without_compiling_either(opened):
    """Their drafts need the drafter's logits, which plain ones do not."""
    runtime = opened.engine.runtime
    before, captured = compilations(), runtime.captures
    form = SamplingParams(grammar=Grammar("regex", "def [a-z]+\\([a-z, ]*\\):"))
    texts = []
    for k in (0, 3, 9):
        [output] = opened.generate(PROMPTS[:1], max_new_tokens=NEW, num_speculative_tokens=k, sampling=form)
        texts.append(output.token_ids)
    assert (compilations(), runtime.captures) == (before, captured)
    assert texts[0] == texts[1] == texts[2]
    assert opened.text.decode(texts[0]).startswith("def ")


def test_rows_are_bitwise_the_same_at_every_depth(opened, plain, twin):
    """Residual streams by (position, token) of one request, over prefill, plans, chunks and waves."""
    forward, truth = twin.forward, None
    try:
        for k in (0, 1, 3, 9):
            seen: dict[tuple[int, ...], Tensor] = {}
            twin.forward = _recorder(forward, seen)
            assert decode(opened, k, PROMPTS[:1]) == plain[:1]
            truth = truth or seen
            whole = [key for key in truth if key in seen]
            assert len(whole) == len(truth) >= NEW
            assert all(torch.equal(truth[key], seen[key]) for key in whole), k
    finally:
        twin.forward = forward


def _recorder(forward: Callable[[Rows], Tensor], seen: dict[tuple[int, ...], Tensor]) -> Callable[[Rows], Tensor]:
    """Keeps the last streams of every (position, token): of one request, the committed row is the last one."""

    def record(rows: Rows) -> Tensor:
        out = forward(rows)
        for i, (slot, position) in enumerate(zip(rows.slots.tolist(), rows.positions.tolist(), strict=True)):
            if slot >= 0:
                for stale in [key for key in seen if key[0] == position]:
                    del seen[stale]
                seen[position, int(rows.tokens[i])] = out[i].clone()
        return out

    return record


def test_a_row_does_not_feel_its_place_or_its_neighbours(twin):
    pages = torch.arange(2).view(2, 1)
    rows = defaultdict(list)
    with torch.inference_mode():
        for place in range(8):
            for neighbours in (False, True):
                tokens, at, slots = torch.zeros(8, dtype=torch.long), torch.full((8,), -1), torch.full((8,), -1)
                if neighbours:
                    tokens[:], at[:], slots[:] = torch.arange(20, 28), torch.arange(8), 1
                tokens[place], at[place], slots[place] = 77, 0, 0
                streams = twin.forward(Rows(tokens, at, slots, pages))
                rows["streams"].append(streams[place].clone())
                rows["best"].append(twin.greedy(streams)[place].clone())
    for name, all_places in rows.items():
        assert len(all_places) == 16
        assert all(torch.equal(all_places[0], other) for other in all_places), name


def test_shapes_that_no_plan_has_are_refused_after_warm_up(opened, twin):
    five = torch.full((5,), -1)
    with pytest.raises(PlanError, match=r"target.forward of int64 \[5\].* was not captured at warm-up"):
        twin.forward(Rows(five, five, five, torch.zeros(2, 1, dtype=torch.long)))


def test_worker_processes_give_the_same_tokens(plain):
    with open_pipeline("mtp-zmq.yaml", **WISHES) as pipeline:
        captured = pipeline.engine.runtime.captures
        assert decode(pipeline, 3) == plain
        assert pipeline.engine.runtime.captures == captured > 6


def test_a_model_that_cannot_be_traced_is_refused():
    def looks(x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else -x

    with pytest.raises(PlanError, match=r"--capture inductor: target.greedy of int64 \[3\] cannot be traced: "):
        StaticCall("target.greedy", looks, Inductor())(torch.zeros(3, dtype=torch.long))


def test_devices_names_and_kernels_that_inductor_has_not():
    for name, device, said in (
        ("inductor", "npu:0", "segment 's0' on npu:0: capture backend 'inductor' is for cpu and cuda devices"),
        ("npugraph", "npu:0", "needs torch_npu"),
        ("inducter", "cpu:0", "did you mean 'inductor'"),
    ):
        with pytest.raises(PlanError, match=said):
            check_backend(name, device, "segment 's0'")
    with pytest.raises(PlanError, match="'cudagraph' is not available"):
        backend("cudagraph")
    graph = load_graph("mtp.yaml")
    assert merge(graph, {"capture": "inductor"}).kernels == "reference"
    for wishes, said in (
        ({"capture": "inductor", "kernels": "native"}, "use --kernels reference"),
        ({"capture": "graphs"}, "known: eager, inductor"),
    ):
        with pytest.raises(UsageError, match=said):
            merge(graph, wishes)


def test_the_plan_says_who_captures(capsys):
    keys = set()
    for name in ("eager", "inductor"):
        assert main(["--graph", "mtp.yaml", "-K", "3", "--capture", name, "--explain", "--no-plan-cache"]) == 0
        out = capsys.readouterr().out
        assert out.count(f"cpu:0  {name}") == 3
        keys.add(out.split("key ")[1][:12])
    assert len(keys) == 2


# -- processes of their own: the compile cache, and machines without a compiler ---------------------------------

PROGRAM = """
import sys
from draftline.runtime.cli import main
code = main(sys.argv[1:])
from torch._dynamo.utils import counters
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
sys.exit(code)
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return folders.tiny_llama(tmp_path_factory.mktemp("llama") / "model")


def run(model: Path, cache: Path, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = ["--graph", "ar.yaml", "--model", str(model), "--prompt", "def f(x):", "--max-new-tokens", "5"]
    words += ["--max-model-len", "32", "--ignore-eos", "--json", "--capture", "inductor", "--threads", "1"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **env}
    command = [sys.executable, "-c", PROGRAM, *words, "--set", "settings.prefill_tile=8", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def test_a_second_process_finds_everything_and_a_damaged_cache_is_compiled_anew(llama, tmp_path):
    first = run(llama, tmp_path)
    assert first.returncode == 0, first.stderr
    tokens, _, counts = first.stdout.partition("\n")
    assert counts == "0 3\n"  # forward, greedy and logits, compiled
    (folder,) = (tmp_path / "draftline" / "inductor").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700  # what is loaded from there is code
    second = run(llama, tmp_path)
    assert second.stdout.partition("\n")[2] == "3 0\n", second.stderr
    libraries = list(folder.rglob("*.so"))
    assert libraries
    for path in libraries:  # loading one of these would end the process with a bus error
        path.write_bytes(path.read_bytes()[:1000])
    third = run(llama, tmp_path)
    assert third.stdout.partition("\n")[2] == "0 3\n", third.stderr
    same = [done.stdout.split('"token_ids": ')[1].split("]")[0] for done in (first, second, third)]
    assert same[0] == same[1] == same[2], tokens


@pytest.mark.parametrize("runtime", ["inline", "zmq"])
@pytest.mark.parametrize(("cxx", "said"), [("/no/such/compiler", "cannot be run"), ("/bin/false", "exit code 1")])
def test_without_a_compiler_it_is_one_line(llama, tmp_path, cxx, said, runtime):
    done = run(llama, tmp_path, "--runtime", runtime, CXX=cxx)
    _one_line(done, said)


def test_a_compiler_that_fails_is_one_line(llama, tmp_path):
    broken = tmp_path / "broken-cxx"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exec g++ --version\necho "error: out of order" >&2\nexit 1\n')
    broken.chmod(0o755)
    _one_line(run(llama, tmp_path / "cache", CXX=str(broken)), "cannot be compiled")


def test_a_cache_that_cannot_be_written_is_one_line(llama, tmp_path):
    (tmp_path / "draftline").write_text("a file where a folder should be")
    _one_line(run(llama, tmp_path, "--no-plan-cache"), "the compile cache", "--capture eager needs none")


def _one_line(done: subprocess.CompletedProcess[str], said: str, advice: str = "--capture eager needs no compiler"):
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert said in done.stderr
    assert advice in done.stderr


def test_no_compiler_at_all(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CapacityError, match=r"needs a C\+\+ compiler"):
        backend("inductor")
