"""The head's ``config.json``. Knows: its keys, and which targets it fits. Does not know: tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from draftline.graph.errors import ConfigError
from draftline.stages.models.core import Shape
from draftline.stages.models.jsonfile import checked, read_json
from draftline.stages.models.llama.config import Config, parse_config

MODEL_TYPE = "draftline_mtp"


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model_type: str
    target: str = ""
    sliding_window: int = Field(gt=0)
    draft_vocab_size: int = Field(default=0, ge=0)
    layer: dict[str, Any]


@dataclass(frozen=True)
class HeadConfig:
    """``layer``: one Llama-style decoder layer of the target's width. ``window``: positions that it looks back, its own
    included. ``draft_vocab_size``: tokens that it may draft, 0 for all. ``target``: the name of the model that it was
    trained for, for people."""

    target: str
    window: int
    draft_vocab_size: int
    layer: Config


def load_head_config(path: Path) -> HeadConfig:
    """Read the head's config.json at ``path``. Raises ConfigError."""
    raw = read_json(path)
    if raw.get("model_type") != MODEL_TYPE:
        raise ConfigError(
            f"{path}: model_type is {raw.get('model_type')!r}; an MTP head has {MODEL_TYPE!r}, a target is for --model"
        )
    keys = checked(_Keys, raw, str(path))
    layer = parse_config(keys.layer, f"{path}, layer")
    if keys.draft_vocab_size > layer.vocab_size:
        raise ConfigError(
            f"{path}: draft_vocab_size={keys.draft_vocab_size} is more than vocab_size={layer.vocab_size}"
        )
    return HeadConfig(keys.target, keys.sliding_window, keys.draft_vocab_size, layer)


def check_fits(head: HeadConfig, shape: Shape, where: Path) -> None:
    """Raises ConfigError unless the head is as wide as the target and knows its vocabulary."""
    for key, mine, theirs in (
        ("hidden_size", head.layer.hidden_size, shape.hidden_size),
        ("vocab_size", head.layer.vocab_size, shape.vocab_size),
    ):
        if mine != theirs:
            said = f" (it was trained for {head.target!r})" if head.target else ""
            raise ConfigError(f"{where}: the MTP head has {key}={mine}, the target {theirs}{said}; use its own target")
