"""SmolLM2-135M with its packaged MTP head, as users run it: lossless at every K, on both runtimes."""

from __future__ import annotations

import functools
import os
import subprocess

import pytest
import smollm2
import torch
from transformers import AutoModelForCausalLM

from draftline.runtime.pipeline import open_pipeline

PROMPTS = [
    "def fibonacci(n):",
    "The capital of France is",
    "<|im_start|>user\nWhat is a cache?<|im_end|>\n<|im_start|>assistant\n",
]
NEW = 20


@pytest.fixture(scope="module", autouse=True)
def model():
    return smollm2.fetched()


def decode(graph: str, k: int, prompts=PROMPTS, **wishes):
    wishes = {"dtype": "bf16", "max_model_len": 128, "max_num_seqs": 2, **wishes}
    with open_pipeline(graph, model="smollm2", num_speculative_tokens=k, **wishes) as pipeline:
        return pipeline.generate(prompts, max_new_tokens=NEW, ignore_eos=True)


@functools.cache
def plain() -> list[tuple[int, ...]]:
    return [o.token_ids for o in decode("ar.yaml", 0, max_num_seqs=1)]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 9])
def test_the_mtp_head_changes_no_token(k):
    outputs = decode("mtp.yaml", k)
    assert [o.token_ids for o in outputs] == plain()
    assert sum(o.counts.num_accepted_tokens for o in outputs) > 0  # it is a head that was trained for this model


def test_prompt_lookup_and_other_sizes_change_no_token():
    assert [o.token_ids for o in decode("ngram.yaml", 3)] == plain()
    assert [o.token_ids for o in decode("mtp.yaml", 3, tile=16, max_num_seqs=3)] == plain()
    assert [o.token_ids for o in decode("ar.yaml", 0, tile=1, max_num_seqs=1)] == plain()


def test_two_worker_processes_give_the_same_tokens():
    assert [o.token_ids for o in decode("mtp-zmq.yaml", 3)] == plain()


def test_the_reference_kernels_are_lossless_too():
    kept = {"kernels": "reference", "prompts": PROMPTS[:1], "max_num_seqs": 1}
    assert decode("mtp.yaml", 3, **kept)[0].token_ids == decode("ar.yaml", 0, **kept)[0].token_ids


def test_float32_equals_transformers(model):
    """Greedy tokens of the dequantised model, against transformers' own loop over the same folder."""
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    outputs = decode("mtp.yaml", 3, dtype="fp32")
    for output in outputs:
        ids = torch.tensor([output.prompt])
        with torch.no_grad():
            options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": -1}
            told = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert tuple(told[0, ids.shape[1] :].tolist()) == output.token_ids


def test_a_fetch_that_is_killed_can_be_repeated(tmp_path):
    assert smollm2.killed_fetch(tmp_path) == -9
    models = tmp_path / "draftline" / "models"
    assert not (models / "smollm2").exists()
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(smollm2.COMMAND, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in models.iterdir()] == ["smollm2"]
    assert (models / "smollm2" / "model.safetensors").stat().st_size > 2.6e8
