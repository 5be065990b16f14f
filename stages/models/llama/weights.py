"""A Llama-style decoder's weights as dataclasses, and the table of Hugging Face tensor names.

Knows: every name, its shape, where it lands. Does not know: files.

Query, key and value lie in one matrix here, gate and up in another: a layer is four matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.stages.weights.files import TensorSpec

from .config import Config


@dataclass(frozen=True)
class LayerWeights:
    """Norms [D] float32; qkv [q+2·kv, D], o [D, q], gate_up [2·I, D], down [D, I]; biases [out] or None; q_norm and
    k_norm [head_dim] float32 or None."""

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    ffn_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True)
class Weights:
    """embed and head [V, D] (the same tensor where they are tied), norm [D] float32."""

    embed: Tensor
    head: Tensor
    norm: Tensor
    layers: tuple[LayerWeights, ...]


def tensor_specs(c: Config) -> dict[str, TensorSpec]:
    """Every tensor name of a model of this config, with its spec."""
    specs = {
        "model.embed_tokens.weight": TensorSpec((c.vocab_size, c.hidden_size)),
        "model.norm.weight": TensorSpec((c.hidden_size,), "float32"),
    }
    if not c.tie_word_embeddings:
        specs["lm_head.weight"] = TensorSpec((c.vocab_size, c.hidden_size))
    for i in range(c.num_hidden_layers):
        specs |= layer_specs(c, f"model.layers.{i}.")
    return specs


def optional_names(c: Config) -> set[str]:
    """Names that a file may hold besides: a head that is tied and stored nevertheless, and old rotary tables."""
    names = {"lm_head.weight"} if c.tie_word_embeddings else set()
    return names | {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(c.num_hidden_layers)}


def output_names(c: Config) -> tuple[str, str]:
    """Names of the embedding and of the output matrix, which may be the same."""
    embed = "model.embed_tokens.weight"
    return embed, embed if c.tie_word_embeddings else "lm_head.weight"


def layer_specs(c: Config, prefix: str) -> dict[str, TensorSpec]:
    """The tensors of one decoder layer, whose names start with ``prefix``."""
    d, q, kv, i = c.hidden_size, c.q_size, c.kv_size, c.intermediate_size
    a, m = prefix + "self_attn.", prefix + "mlp."
    specs = {
        prefix + f"{n}.weight": TensorSpec((d,), "float32") for n in ("input_layernorm", "post_attention_layernorm")
    }
    matrices = (
        (a + "q_proj", q, d, c.qkv_bias),
        (a + "k_proj", kv, d, c.qkv_bias),
        (a + "v_proj", kv, d, c.qkv_bias),
        (a + "o_proj", d, q, c.o_bias),
        (m + "gate_proj", i, d, c.mlp_bias),
        (m + "up_proj", i, d, c.mlp_bias),
        (m + "down_proj", d, i, c.mlp_bias),
    )
    for name, out, into, bias in matrices:
        specs[name + ".weight"] = TensorSpec((out, into))
        if bias:
            specs[name + ".bias"] = TensorSpec((out,))
    if c.qk_norm:
        specs |= {a + f"{n}.weight": TensorSpec((c.head_dim,), "float32") for n in ("q_norm", "k_norm")}
    return specs


def assemble_layer(c: Config, tensors: Mapping[str, Tensor], prefix: str) -> LayerWeights:
    """One decoder layer from the tensors that ``layer_specs`` names."""
    a, m = prefix + "self_attn.", prefix + "mlp."

    def joined(names: tuple[str, ...], what: str) -> Tensor | None:
        parts = [tensors.get(f"{n}.{what}") for n in names]
        return torch.cat([p for p in parts if p is not None]) if None not in [*parts] else None

    qkv, gate_up = (a + "q_proj", a + "k_proj", a + "v_proj"), (m + "gate_proj", m + "up_proj")
    return LayerWeights(
        attn_norm=tensors[prefix + "input_layernorm.weight"],
        qkv=torch.cat([tensors[n + ".weight"] for n in qkv]),
        qkv_bias=joined(qkv, "bias"),
        q_norm=tensors.get(a + "q_norm.weight"),
        k_norm=tensors.get(a + "k_norm.weight"),
        o=tensors[a + "o_proj.weight"],
        o_bias=tensors.get(a + "o_proj.bias"),
        ffn_norm=tensors[prefix + "post_attention_layernorm.weight"],
        gate_up=torch.cat([tensors[n + ".weight"] for n in gate_up]),
        gate_up_bias=joined(gate_up, "bias"),
        down=tensors[m + "down_proj.weight"],
        down_bias=tensors.get(m + "down_proj.bias"),
    )


def assemble(c: Config, tensors: Mapping[str, Tensor]) -> Weights:
    """The model from the tensors that ``tensor_specs`` names."""
    embed = tensors["model.embed_tokens.weight"]
    return Weights(
        embed=embed,
        head=embed if c.tie_word_embeddings else tensors["lm_head.weight"],
        norm=tensors["model.norm.weight"],
        layers=tuple(assemble_layer(c, tensors, f"model.layers.{i}.") for i in range(c.num_hidden_layers)),
    )
