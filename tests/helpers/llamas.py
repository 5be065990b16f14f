"""Random Llama-style models in transformers and here. Helper for tests; no tests in here."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch
import transformers as hf

from draftline.runtime.deployment import Sizes
from draftline.stages.caches.core import Geometry
from draftline.stages.models.core import Loaded, Rows
from draftline.stages.models.llama import shape_of
from draftline.stages.models.llama.config import Config, parse_config
from draftline.stages.models.llama.model import LlamaTarget
from draftline.stages.models.llama.native import NativeLlamaTarget
from draftline.stages.models.llama.weights import Weights, assemble, tensor_specs

BASE = {
    "vocab_size": 300,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


KINDS: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
    "llama-tied": (hf.LlamaConfig, hf.LlamaForCausalLM, {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "llama-biases": (hf.LlamaConfig, hf.LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "llama-all-heads": (hf.LlamaConfig, hf.LlamaForCausalLM, {"num_key_value_heads": 4, "head_dim": 32}),
    "llama-one-kv-head": (hf.LlamaConfig, hf.LlamaForCausalLM, {"num_key_value_heads": 1}),
    "llama-linear": (hf.LlamaConfig, hf.LlamaForCausalLM, rope("linear", factor=4.0)),
    "llama-llama3": (hf.LlamaConfig, hf.LlamaForCausalLM, rope("llama3", **LLAMA3)),
    "llama-yarn": (
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        rope("yarn", factor=4.0, original_max_position_embeddings=128),
    ),
    "mistral": (hf.MistralConfig, hf.MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {"vocab_size": 301}),
    "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {"tie_word_embeddings": True}),
}


@functools.cache
def oracle(kind: str) -> tuple[Any, dict[str, Any]]:
    """transformers' model with weights that matter (norms and biases too), and its config as config.json has it."""
    config_class, model_class, changes = KINDS[kind]
    config = config_class(**{**BASE, **changes})
    torch.manual_seed(5)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(std=0.15 if p.dim() > 1 else 0.1)
            if "norm" in name:
                p.add_(1.0)
    return model, json.loads(config.to_json_string(use_diff=False))


@functools.cache
def ours(kind: str, dtype: torch.dtype = torch.float32) -> tuple[Config, Weights]:
    """The same model as our weights."""
    model, raw = oracle(kind)
    c = parse_config(raw)
    tensors = {
        n: t.detach() for n, t in model.state_dict().items() if n != "lm_head.weight" or not c.tie_word_embeddings
    }
    specs = tensor_specs(c)
    assert {n: tuple(t.shape) for n, t in tensors.items()} == {n: s.shape for n, s in specs.items()}
    return c, assemble(c, {n: t.to(dtype) if specs[n].kind == "model" else t for n, t in tensors.items()})


def target(kind: str, geometry: Geometry, kernels: str, dtype: torch.dtype = torch.float32) -> Any:
    """A target with empty caches."""
    c, w = ours(kind, dtype)
    if kernels == "native":
        return NativeLlamaTarget(c, w, geometry, dtype)
    return LlamaTarget(c, w, geometry, dtype, torch.device("cpu"))


def model(kind: str, sizes: Sizes, kernels: str, dtype: torch.dtype = torch.float32) -> Loaded:
    """A target without a drafter, as an engine takes it."""
    g = sizes.geometry()
    return Loaded(shape_of(ours(kind)[0]), target(kind, g, kernels, dtype), None, g, dtype, torch.device("cpu"))


def rows(tokens: torch.Tensor, start: int, real: int, size: int, pages: torch.Tensor, slot: int = 1) -> Rows:
    """Rows start … start+real-1 of ``tokens`` in ``slot``, in a call of ``size`` rows; the rest are pad rows."""
    ids, at, slots = torch.zeros(size, dtype=torch.long), torch.full((size,), -1), torch.full((size,), -1)
    ids[:real], at[:real], slots[:real] = tokens[start : start + real], torch.arange(start, start + real), slot
    return Rows(ids, at, slots, pages)
