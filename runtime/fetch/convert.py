"""A GGUF of a Llama-style model, dequantised once into a Hugging Face folder in bf16.

Knows: GGUF's names and its order of rotary channels. Does not know: where the file came from. The ``gguf`` package
reads and dequantises.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from draftline.graph.errors import ModelError

_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SPECIAL = 3
"""GGUF's token type of control tokens."""


def convert(source: Path, folder: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json into ``folder``. Raises ModelError
    for a file that is no GGUF of a Llama with a GPT-2 style tokenizer."""
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, OSError, IndexError) as error:
        raise ModelError(f"{source}: not a readable GGUF: {error}") from None
    fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    kinds = fields.get("general.architecture"), fields.get("tokenizer.ggml.model")
    if kinds != ("llama", "gpt2"):
        raise ModelError(f"{source}: architecture and tokenizer are {kinds}; ('llama', 'gpt2') is served")
    config = _config(fields, tied=not any(t.name == "output.weight" for t in reader.tensors))
    tensors = dict(_tensor(t, config) for t in reader.tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the library makes it private to its owner
    _write(folder / "config.json", config)
    _tokenizer(fields).save(str(folder / "tokenizer.json"))
    tokens = fields["tokenizer.ggml.tokens"]
    names = {f"{n}_token": tokens[config[f"{n}_token_id"]] for n in ("bos", "eos")}
    _write(folder / "tokenizer_config.json", names | {"chat_template": fields.get("tokenizer.chat_template")})


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    def llama(key: str) -> Any:
        return fields["llama." + key]

    heads = llama("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": llama("vocab_size"),
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "num_hidden_layers": llama("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": llama("attention.head_count_kv"),
        "head_dim": llama("embedding_length") // heads,
        "hidden_act": "silu",
        "max_position_embeddings": llama("context_length"),
        "rms_norm_eps": round(llama("attention.layer_norm_rms_epsilon"), 12),
        "rope_theta": llama("rope.freq_base"),
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
    }


def _tensor(t: Any, config: dict[str, Any]) -> tuple[str, torch.Tensor]:
    """Its Hugging Face name and bf16 values."""
    stem, _, what = t.name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        name = f"model.layers.{layer}.{_LAYER[part]}.{what}"
    else:
        part, name = stem, f"{_TOP[stem]}.{what}"
    values = np.array(dequantize(t.data, t.tensor_type), dtype=np.float32)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(part)
    if heads:
        # GGUF interleaves the two halves of each rotary head; Hugging Face keeps them apart.
        values = values.reshape(heads, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
    return name, torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE; SmolLM's pre-tokenizer takes digits one by one."""
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ", 1)) for m in fields["tokenizer.ggml.merges"]]
    out = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    parts: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if fields.get("tokenizer.ggml.pre") == "smollm":
        parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
    out.pre_tokenizer = pre_tokenizers.Sequence(parts)
    out.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == SPECIAL]
    out.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return out


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
