"""A random Llama as a folder that ``--model`` takes. Helper for tests; no tests in here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftline.stages.models.llama.config import parse_config
from draftline.stages.models.llama.weights import tensor_specs
from draftline.stages.models.places import PACKAGED

CONFIG = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def tiny_llama(folder: Path, seed: int = 3, **changes: Any) -> Path:
    """Write the model (``changes`` to its config), with tiny-v4's tokenizer, and a chat template."""
    folder.mkdir(parents=True)
    g, config = torch.Generator().manual_seed(seed), {**CONFIG, **changes}
    tensors = {}
    for name, spec in tensor_specs(parse_config(config)).items():
        one = len(spec.shape) == 1
        tensors[name] = torch.ones(spec.shape) if one else torch.randn(spec.shape, generator=g) * 0.15
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    each, end = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "<assistant>{% endif %}"
    template = {"chat_template": each + "{% if add_generation_prompt %}" + end}
    (folder / "tokenizer_config.json").write_text(json.dumps(template), "utf-8")
    shutil.copy(PACKAGED / "tiny-v4" / "tokenizer.json", folder)
    return folder
