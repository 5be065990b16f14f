"""Writing a trained head as a folder. Knows: its files. Does not know: training."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from draftline.stages.models.mtp_head.config import MODEL_TYPE, HeadConfig
from draftline.stages.models.mtp_head.weights import head_specs


def write_head(
    folder: Path, c: HeadConfig, layer: dict[str, Any], parameters: dict[str, Tensor], vocab: Tensor | None
) -> None:
    """Write config.json and model.safetensors (bf16, norms too) into ``folder``, whole or not at all. ``layer``: the
    decoder layer's keys, as in a Llama's config.json."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    specs = head_specs(c)
    tensors = {n: p.to(torch.bfloat16).contiguous() for n, p in parameters.items() if n in specs}
    if vocab is not None:
        tensors["draft_vocab"] = vocab
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    (partial / "model.safetensors").chmod(0o644)  # the library makes it private to its owner
    config = {
        "model_type": MODEL_TYPE,
        "target": c.target,
        "sliding_window": c.window,
        "draft_vocab_size": 0 if vocab is None else len(vocab),
        "layer": layer,
    }
    (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
