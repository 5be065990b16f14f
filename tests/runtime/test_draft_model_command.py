"""A draft model by its folder: the command, the settings, what is refused, worker processes, memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from folders import CONFIG, tiny_llama

from draftline.graph.errors import CapacityError, ConfigError
from draftline.graph.yaml import load_graph
from draftline.runtime.cli import main
from draftline.runtime.deployment import check_memory, load
from draftline.runtime.pipeline import open_pipeline, prepare
from draftline.stages.models.core import ModelFiles
from draftline.stages.models.registry import cache_bytes, load_model, locate, uses_native

PROMPT = "def read_lines(path):"
PLACED = (("check", "cpu:1"), ("commit", "cpu:1"), ("draft", "cpu:0"), ("pad", "cpu:0"))
GRAPH = ["--graph", "draft-model.yaml"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    """A target, and a smaller model of the same tokenizer and a padded vocabulary."""
    root = tmp_path_factory.mktemp("models")
    return str(tiny_llama(root / "big")), str(
        tiny_llama(root / "small", seed=4, num_hidden_layers=1, vocab_size=4112, max_position_embeddings=256)
    )


def texts(capsys, *flags: str) -> list[dict]:
    code = main([*GRAPH, "--prompt", PROMPT, "--max-new-tokens", "24", "--ignore-eos", "--json", *flags])
    out, err = capsys.readouterr()
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_the_command(folders, capsys):
    big, small = folders
    [plain] = texts(capsys, "--model", big, "-K", "0")
    [both] = texts(capsys, "--model", big, "--draft-model", small, "-K", "4")
    [own] = texts(capsys, "--model", big, "--draft-model", big, "-K", "4")
    config = json.dumps({"method": "draft_model", "model": small, "num_speculative_tokens": 4})
    [as_vllm] = texts(capsys, "--model", big, "--speculative-config", config)
    [as_set] = texts(capsys, "--set", f"settings.model={big}", "--set", f"settings.draft_model={small}")
    assert plain["token_ids"] == both["token_ids"] == own["token_ids"]
    assert both["num_draft_tokens"] > 0
    assert own["num_accepted_tokens"] == own["num_draft_tokens"]
    assert own["num_steps"] == 5  # 24 tokens, five a step
    for other in (as_vllm, as_set):
        assert {**other, "timing": 0} == {**both, "timing": 0}


def test_the_plan_is_printed_and_does_not_depend_on_the_draft_model(folders, capsys):
    big, small = folders
    plans = []
    for draft in (small, big):
        assert (
            main([*GRAPH, "--model", big, "--draft-model", draft, "-K", "2", "--max-model-len", "256", "--explain"])
            == 0
        )
        plans.append(capsys.readouterr().out)
    assert plans[0] == plans[1]
    assert "draft.1: draft.model (draft.drafts[:, 0], position, depth, recent, num_recent, pages, none)" in plans[0]


def test_two_workers_each_with_one_model(folders):
    """The drafter's worker reads no target, the other no draft model; drafts are made while the target verifies."""
    big, small = folders
    graph = replace(load_graph("draft-model.yaml"), placement=PLACED)
    wishes = {"model": big, "max_num_seqs": 2, "max_model_len": 256}
    prompts = [PROMPT, "x = 1\nx = 1\n", "class A:"]
    with open_pipeline("ar.yaml", **wishes) as pipeline:
        truth = [o.token_ids for o in pipeline.generate(prompts, max_new_tokens=24)]
    for draft, runtime in ((small, "zmq"), (big, "inline")):
        more = {"runtime": runtime, "overlap": True, "draft_model": draft, "num_speculative_tokens": 9}
        with open_pipeline(graph, **wishes, **more) as pipeline:
            outputs = pipeline.generate(prompts, max_new_tokens=24)
        assert [o.token_ids for o in outputs] == truth
        assert sum(o.counts.num_draft_tokens for o in outputs) > 0
    assert all(o.counts.num_accepted_tokens == o.counts.num_draft_tokens for o in outputs)


def test_a_worker_reads_only_what_its_stages_use(folders, tmp_path):
    files, sizes = locate(*folders[:1], "", folders[1]), prepare("ar.yaml", model=folders[0], max_model_len=64).sizes
    drafts = load(files, sizes, ("draft_model",))
    assert (drafts.target, drafts.drafter) == (None, None)
    assert drafts.draft_model.vocab_size == CONFIG["vocab_size"]  # type: ignore[union-attr]
    (Path(files.folder) / "model.safetensors").rename(tmp_path / "away")
    try:
        load(files, sizes, ("draft_model",))
    finally:
        (tmp_path / "away").rename(Path(files.folder) / "model.safetensors")
    assert load(files, sizes, ("target",)).draft_model is None


def test_memory_counts_both_caches(folders):
    big, small = (Path(folder) for folder in folders)
    sizes = prepare("ar.yaml", model=str(big), max_model_len=256).sizes
    both, geometry = ModelFiles(big, None, small), sizes.geometry()
    one, other, sum_of = (cache_bytes(f, geometry, torch.float32) for f in (ModelFiles(big), ModelFiles(small), both))
    assert sum_of == one + other > one
    loaded = load_model(both, geometry, torch.float32, torch.device("cpu"), ("target", "draft_model"), "reference")
    caches = [c for m in (loaded.target, loaded.draft_model._model) for c in m.caches]  # type: ignore[union-attr]
    assert sum(c.keys.nbytes + c.values.nbytes for c in caches) == sum_of
    with pytest.raises(CapacityError, match="do not fit into memory"):
        check_memory(both, replace(sizes, max_num_seqs=10**8), 1)


def refused(capsys, *flags: str) -> str:
    code = main(["--prompt", "x", *flags])
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if "warning" not in line]
    assert (code, out, len(lines)) == (2, "", 1), err
    return lines[0]


def test_what_does_not_go_together_is_refused(folders, capsys):
    big, small = folders
    both = ["--model", big, "--draft-model", small]
    said = refused(capsys, *GRAPH, "--model", big)
    assert "graph 'draft_model' drafts with a model of its own, but there is none: give its folder with" in said
    said = refused(capsys, "--graph", "ngram.yaml", *both)
    assert said.endswith("graph 'ngram' has no stage draft.model; use --graph draft-model.yaml, or give none")
    assert f"('{small}', by --draft-model" in said
    assert "no such folder" in refused(capsys, *GRAPH, "--draft-model", "nowhere")
    said = refused(capsys, *GRAPH, *both, "--max-model-len", "400")
    assert "max_position_embeddings=256 (the smaller of its own and that of draft model" in said
    config = json.dumps({"model": "other", "num_speculative_tokens": 2})
    assert "--draft-model says" in refused(capsys, *GRAPH, *both, "--speculative-config", config)
    said = refused(capsys, *GRAPH, "--speculative-config", '{"model": 3, "num_speculative_tokens": 2}')
    assert "model is 3" in said
    config = json.dumps({"method": "ngram", "model": small, "num_speculative_tokens": 2})
    assert "method 'ngram' does not have" in refused(capsys, *GRAPH, "--speculative-config", config)
    config = json.dumps({"model": small, "num_speculative_tokens": 2})
    said = refused(capsys, "--graph", "mtp.yaml", "--speculative-config", config)
    assert "the method needs stage 'draft.model', graph 'mtp' drafts with: draft.mtp" in said


def test_tokens_must_mean_the_same(folders, tmp_path, capsys):
    big, small = folders
    other = tiny_llama(tmp_path / "other", vocab_size=4112)
    tokenizer = json.loads((other / "tokenizer.json").read_text("utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab["a token of its own"] = 4100  # no harm: it is never drafted
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    assert prepare("draft-model.yaml", model=big, draft_model=str(other)).files.draft_model == other
    first, second = (next(t for t, i in vocab.items() if i == n) for n in (300, 301))
    vocab[first], vocab[second] = 301, 300
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    said = refused(capsys, *GRAPH, "--model", big, "--draft-model", str(other))
    assert f"token 300 is {second!r} in {other}/tokenizer.json and {first!r} in {big}/tokenizer.json: 2 token" in said
    (Path(small) / "tokenizer.json").rename(tmp_path / "away")
    try:
        with pytest.raises(ConfigError, match=f"{small} has vocab_size=4112, the model {big} has 4096"):
            prepare("draft-model.yaml", model=big, draft_model=small)
    finally:
        (tmp_path / "away").rename(Path(small) / "tokenizer.json")


def test_native_kernels_are_asked_of_both(folders):
    big, _ = folders
    files = locate(big, "", "tiny-v4")  # a V4 has no native kernels
    assert uses_native(ModelFiles(files.folder), "native", torch.device("cpu"))
    sizes = prepare("ar.yaml", model=big, max_model_len=64, page_size=128, kernels="native").sizes
    with pytest.raises(Exception, match=r"tiny-v4: there are no native kernels"):
        load(files, sizes, ("target", "draft_model"))
    mixed = load(files, replace(sizes, kernels="auto"), ("target", "draft_model"))
    assert [type(m).__name__ for m in (mixed.target, mixed.draft_model)] == ["NativeLlamaTarget", "DeepseekV4Target"]
