"""Checkpoints of known acceptance: a target whose later layers add exactly nothing, a draft that is its first layers.

Knows: two shapes and how their random weights are made. Does not know: engines, prompts, speeds.

The residual branches of the later layers end in zeros (``o_proj`` and ``down_proj``), so target and draft compute the
same logits while the target still reads all of its weights: every draft is accepted, and what is left to measure is
the pipeline. Random weights decide nothing by a wide margin, and two roundings of bf16 may then disagree. So embedding
row 2i+1 is row 2i with the signs of half of the channels turned, the final norm's weight has the same signs, and the
tied head answers each token with its partner: 2i, 2i+1, 2i, … by a margin that no rounding crosses. ``live`` layers
stir the residual stream (cosine with the embedding about 0.9) so that they are no dead weight.

    python -m benchmarks.peers.shapes FOLDER [--shape 135m|0.5b] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file

from draftline.stages.models.places import resolve

EMBEDDING, BRANCH, WEIGHT = 0.05, 0.0015, 0.02
"""Standard deviations: embedding rows; the matrices that end a live residual branch; every other matrix and bias."""


@dataclass(frozen=True)
class RaceShape:
    """A model's sizes. ``live``: layers that contribute, and the draft's only layers. ``config``: keys of config.json
    beyond the sizes. ``biased``: whether q, k and v have biases (Qwen2)."""

    name: str
    layers: int
    live: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    biased: bool
    config: Mapping[str, Any]

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def weight_bytes(self, layers: int) -> int:
        """Bytes of bf16 weights that one decoded token reads with that many layers: all matrices, the tied embedding
        once, as the head."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return 2 * (layers * (attention + 3 * self.hidden * self.intermediate) + self.vocab * self.hidden)


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "attention_bias": False,
    "mlp_bias": False,
}
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
}
SHAPES: Mapping[str, RaceShape] = MappingProxyType(
    {
        "135m": RaceShape("135m", 30, 3, 576, 1536, 9, 3, 49152, False, LLAMA),
        "0.5b": RaceShape("0.5b", 24, 2, 896, 4864, 14, 2, 151936, True, QWEN),
    }
)
"""The sizes of SmolLM2-135M and Qwen2.5-0.5B."""


def config(shape: RaceShape, layers: int) -> dict[str, Any]:
    """config.json of the shape with that many layers."""
    return dict(shape.config) | {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def weights(shape: RaceShape, seed: int) -> dict[str, torch.Tensor]:
    """The target's tensors in bf16 under Hugging Face's names."""
    random = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int, std: float) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=random) * std).to(torch.bfloat16)

    signs = torch.ones(shape.hidden)
    signs[torch.randperm(shape.hidden, generator=random)[: shape.hidden // 2]] = -1
    rows = draw(shape.vocab // 2, shape.hidden, EMBEDDING)
    out = {
        "model.embed_tokens.weight": torch.stack([rows, rows * signs.bfloat16()], 1).flatten(0, 1).contiguous(),
        "model.norm.weight": signs.bfloat16(),
    }
    kv, wide = shape.kv_heads * shape.head_dim, shape.intermediate
    for i in range(shape.layers):
        ending = BRANCH if i < shape.live else 0.0
        at = f"model.layers.{i}."
        for name, size in (("q", shape.hidden), ("k", kv), ("v", kv)):
            out[f"{at}self_attn.{name}_proj.weight"] = draw(size, shape.hidden, WEIGHT)
            if shape.biased:
                out[f"{at}self_attn.{name}_proj.bias"] = draw(1, size, WEIGHT)[0]
        out[f"{at}self_attn.o_proj.weight"] = draw(shape.hidden, shape.hidden, ending)
        out[f"{at}mlp.gate_proj.weight"] = draw(wide, shape.hidden, WEIGHT)
        out[f"{at}mlp.up_proj.weight"] = draw(wide, shape.hidden, WEIGHT)
        out[f"{at}mlp.down_proj.weight"] = draw(shape.hidden, wide, ending)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"{at}{norm}.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    return out


def first_layers(tensors: Mapping[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """The same embedding, norm and head with the first layers alone."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }


def copy_tokenizer(source: Path, out: Path) -> None:
    """The tokenizer's files, with a class that takes tokenizer.json as it is: by the model's type alone, transformers
    would choose Llama's or Qwen2's own and split text in another way."""
    shutil.copy(source / "tokenizer.json", out / "tokenizer.json")
    about = json.loads((source / "tokenizer_config.json").read_text("utf-8"))
    about["tokenizer_class"] = "TokenizersBackend"
    (out / "tokenizer_config.json").write_text(json.dumps(about), "utf-8")


def write(shape: RaceShape, folder: Path, tokenizer: Path, seed: int = 0) -> tuple[Path, Path]:
    """Write ``folder/target`` and ``folder/draft``; what is there already is kept. ``tokenizer``: a folder whose
    tokenizer's files are copied; its ids must lie below the shape's vocabulary."""
    found = {"target": shape.layers, "draft": shape.live}
    if not all((folder / name / "model.safetensors").is_file() for name in found):
        tensors = weights(shape, seed)
        for name, layers in found.items():
            at = folder / name
            at.mkdir(parents=True, exist_ok=True)
            (at / "config.json").write_text(json.dumps(config(shape, layers), indent=2), "utf-8")
            copy_tokenizer(tokenizer, at)
            save_file(first_layers(tensors, layers), at / "model.part", metadata={"format": "pt"})
            (at / "model.part").rename(at / "model.safetensors")
    return folder / "target", folder / "draft"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--shape", choices=[*SHAPES], nargs="+", default=[*SHAPES])
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    for name in args.shape:
        print(*write(SHAPES[name], args.folder / name, resolve("smollm2"), args.seed))


if __name__ == "__main__":
    main()
