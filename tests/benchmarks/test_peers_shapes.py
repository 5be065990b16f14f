"""Checkpoints of known acceptance: transformers finds the same logits in target and draft, by a wide margin."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks.peers.shapes import SHAPES, first_layers, weights, write


@pytest.fixture(params=["135m", "0.5b"])
def written(request, tmp_path):
    shape = replace(SHAPES[request.param], layers=6, vocab=1024)
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tokenizer / file).write_text("{}")
    return shape, write(shape, tmp_path / "made", tokenizer)


def test_the_draft_is_always_right(written):
    shape, (target, draft) = written
    whole, first = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32).eval() for f in (target, draft))
    assert len(whole.model.layers) == 6
    assert len(first.model.layers) == shape.live
    ids = torch.randint(shape.vocab, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = whole(ids).logits
        assert torch.equal(logits, first(ids).logits)
        assert torch.equal(logits.argmax(-1), ids ^ 1)  # 2i answers 2i+1 and the reverse
        best = logits.topk(2, -1).values
        assert (best[..., 0] - best[..., 1]).min() > 8  # bf16 steps at 32 are 0.25
        hidden = whole.model(ids, output_hidden_states=True).hidden_states
        stirred = torch.nn.functional.cosine_similarity(hidden[0], hidden[shape.live], dim=-1)
    assert 0.5 < stirred.mean() < 0.99  # the live layers are no dead weight


def test_later_layers_have_full_matrices_but_for_their_ends():
    shape = replace(SHAPES["0.5b"], layers=3, vocab=256)
    made = weights(shape, 0)
    for name, tensor in made.items():
        ends = "layers.2." in name and ("o_proj" in name or "down_proj" in name)
        assert bool((tensor == 0).all()) == ends, name
    assert sum(t.numel() for n, t in made.items() if "proj" in n and "bias" not in n) * 2 + 256 * 896 * 2 == (
        shape.weight_bytes(3)
    )
    assert not any("layers.2." in name for name in first_layers(made, shape.live))


def test_sizes_are_the_real_models():
    assert SHAPES["135m"].weight_bytes(30) == pytest.approx(2 * 134.5e6, rel=0.002)
    assert SHAPES["0.5b"].weight_bytes(24) == pytest.approx(2 * 494e6, rel=0.002)


def test_the_seed_decides(written, tmp_path):
    shape, (target, _) = written
    made = load_file(target / "model.safetensors")
    again, other = weights(shape, 0), weights(shape, 1)
    assert all(torch.equal(made[n], again[n]) for n in again)
    assert not torch.equal(again["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert json.loads((target / "config.json").read_text())["tie_word_embeddings"] is True
