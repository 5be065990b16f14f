"""Llama-style ``config.json`` as a frozen value: Llama, Mistral, Qwen2, Qwen3.

Knows: the official keys, what each ``model_type`` adds, which options cannot be served and why. Does not know:
tensors. Unknown keys are kept out silently (hub configs carry many that do not matter here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftline.graph.errors import ConfigError
from draftline.stages.models.jsonfile import checked, read_json

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
RopeKind = Literal["default", "linear", "llama3", "yarn"]
_KINDS = ("default", "linear", "llama3", "yarn")
_NOT_SERVED = {
    "dynamic": "its frequencies depend on the length of the sequence, so a cached key would have to be rotated again",
    "longrope": "its frequencies depend on the length of the sequence, so a cached key would have to be rotated again",
}


class _RopeKeys(BaseModel):
    """``rope_scaling``, and ``rope_parameters`` as transformers 5 writes it."""

    model_config = ConfigDict(extra="ignore")
    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = Field(default=None, gt=0)
    factor: float = Field(default=1.0, gt=0)
    original_max_position_embeddings: int | None = Field(default=None, gt=0)
    low_freq_factor: float = Field(default=1.0, gt=0)
    high_freq_factor: float = Field(default=4.0, gt=0)
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    attention_factor: float | None = Field(default=None, gt=0)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    partial_rotary_factor: float | None = None


class _Official(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=False)
    model_type: str
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int | None = Field(default=None, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    hidden_act: str = "silu"
    max_position_embeddings: int = Field(default=2048, gt=0)
    rms_norm_eps: float = 1e-6
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_scaling: _RopeKeys | None = None
    rope_parameters: _RopeKeys | None = None
    partial_rotary_factor: float | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    @model_validator(mode="after")
    def _rules(self) -> _Official:
        if self.model_type not in MODEL_TYPES:
            raise ValueError(f"model_type is {self.model_type!r}; this reader knows {', '.join(MODEL_TYPES)}")
        if self.hidden_act not in ("silu", "swish"):
            raise ValueError(f"hidden_act is {self.hidden_act!r}; 'silu' is served")
        kv = self.num_key_value_heads or self.num_attention_heads
        if self.num_attention_heads % kv:
            raise ValueError(f"num_key_value_heads={kv} does not divide num_attention_heads={self.num_attention_heads}")
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError("head_dim is missing, and num_attention_heads does not divide hidden_size")
        if (self.head_dim or self.hidden_size // self.num_attention_heads) % 2:
            raise ValueError("head_dim must be even: rotary positions turn pairs of channels")
        slides = self.model_type == "mistral" or self.use_sliding_window
        if slides and self.sliding_window and self.sliding_window < self.max_position_embeddings:
            raise ValueError(
                f"sliding_window={self.sliding_window} is below max_position_embeddings={self.max_position_embeddings}:"
                " sliding attention is not served for this family; set max_position_embeddings to the window"
            )
        for keys in (self, self.rope_scaling, self.rope_parameters):
            if keys is not None and keys.partial_rotary_factor not in (None, 1.0):
                raise ValueError(f"partial_rotary_factor is {keys.partial_rotary_factor}; only 1.0 is served")
        return self


@dataclass(frozen=True)
class Rope:
    """How positions become angles; fields as in ``rope_scaling``. Formulas: ``kernels/rope_scaling.py``."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class Config:
    """Sizes of a Llama-style decoder. Names follow ``config.json``."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def q_size(self) -> int:
        """Channels of all query heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Channels of all key (or value) heads."""
        return self.num_key_value_heads * self.head_dim


def _rope(o: _Official, where: str) -> Rope:
    keys = o.rope_parameters or o.rope_scaling or _RopeKeys()
    theta = keys.rope_theta or o.rope_theta
    kind = keys.rope_type or keys.type or "default"
    if kind not in _KINDS:
        why = f": {_NOT_SERVED[kind]}" if kind in _NOT_SERVED else ""
        raise ConfigError(f"{where}: rope_type is {kind!r}{why}; served: {', '.join(_KINDS)}")
    return Rope(
        theta=theta,
        kind=kind,  # type: ignore[arg-type]
        factor=keys.factor,
        original_length=keys.original_max_position_embeddings or o.max_position_embeddings,
        low_freq_factor=keys.low_freq_factor,
        high_freq_factor=keys.high_freq_factor,
        beta_fast=keys.beta_fast,
        beta_slow=keys.beta_slow,
        attention_factor=keys.attention_factor,
        mscale=keys.mscale,
        mscale_all_dim=keys.mscale_all_dim,
        truncate=keys.truncate,
    )


def parse_config(raw: Mapping[str, Any], where: str = "config.json") -> Config:
    """Check the official keys and return a Config.

    Raises ConfigError that names the file, each wrong key and what would be right.
    """
    o = checked(_Official, raw, where)
    eos = o.eos_token_id if isinstance(o.eos_token_id, list) else [o.eos_token_id]
    return Config(
        model_type=o.model_type,
        vocab_size=o.vocab_size,
        hidden_size=o.hidden_size,
        intermediate_size=o.intermediate_size,
        num_hidden_layers=o.num_hidden_layers,
        num_attention_heads=o.num_attention_heads,
        num_key_value_heads=o.num_key_value_heads or o.num_attention_heads,
        head_dim=o.head_dim or o.hidden_size // o.num_attention_heads,
        max_position_embeddings=o.max_position_embeddings,
        rms_norm_eps=o.rms_norm_eps,
        rope=_rope(o, where),
        tie_word_embeddings=o.tie_word_embeddings,
        # Qwen2 has biases on q, k, v and no key that says so.
        qkv_bias=o.attention_bias or o.model_type == "qwen2",
        o_bias=o.attention_bias and o.model_type != "qwen2",
        mlp_bias=o.mlp_bias and o.model_type == "llama",
        qk_norm=o.model_type == "qwen3",
        bos_token_id=o.bos_token_id,
        eos_token_ids=tuple(t for t in eos if t is not None),
    )


def load_config(path: Path) -> Config:
    """Read ``config.json`` at ``path``. Raises ConfigError."""
    return parse_config(read_json(path), str(path))
