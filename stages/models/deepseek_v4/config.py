"""DeepSeek V4's ``config.json`` as a frozen value. Knows: the official keys, their types and rules.

Does not know: tensors. Unknown keys are kept out silently (hub configs carry many that do not matter here);
missing or impossible ones are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftline.stages.models.jsonfile import checked, read_json


class _Yarn(BaseModel):
    model_config = ConfigDict(extra="ignore")
    factor: float = Field(gt=0)
    original_max_position_embeddings: int = Field(gt=0)
    beta_fast: float = 32
    beta_slow: float = 1


class _Official(BaseModel):
    """The keys that we read, as DeepSeek writes them."""

    model_config = ConfigDict(extra="ignore", strict=False)
    model_type: str
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    moe_intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    qk_rope_head_dim: int = Field(gt=0)
    q_lora_rank: int = Field(gt=0)
    o_groups: int = Field(gt=0)
    o_lora_rank: int = Field(gt=0)
    n_routed_experts: int = Field(gt=0)
    n_shared_experts: int = 1
    num_experts_per_tok: int = Field(gt=0)
    num_hash_layers: int = Field(ge=0)
    num_nextn_predict_layers: int = Field(default=0, ge=0)
    index_n_heads: int = Field(gt=0)
    index_head_dim: int = Field(gt=0)
    index_topk: int = Field(gt=0)
    sliding_window: int = Field(gt=0)
    compress_ratios: list[int]
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    rope_scaling: _Yarn | None = None
    hc_mult: int = Field(default=4, gt=0)
    hc_eps: float = 1e-6
    hc_sinkhorn_iters: int = Field(default=20, gt=0)
    max_position_embeddings: int = Field(gt=0)
    rms_norm_eps: float = 1e-6
    routed_scaling_factor: float = 1.5
    scoring_func: str = "sqrtsoftplus"
    norm_topk_prob: bool = True
    swiglu_limit: float = 10.0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    @model_validator(mode="after")
    def _rules(self) -> _Official:
        if self.model_type != "deepseek_v4":
            raise ValueError(f"model_type is {self.model_type!r}; this reader knows 'deepseek_v4'")
        if self.scoring_func != "sqrtsoftplus":
            raise ValueError(f"scoring_func is {self.scoring_func!r}; DeepSeek V4 uses 'sqrtsoftplus'")
        if self.n_shared_experts != 1:
            raise ValueError(f"n_shared_experts is {self.n_shared_experts}; DeepSeek V4 has exactly 1")
        if len(self.compress_ratios) < self.num_hidden_layers:
            raise ValueError(
                f"compress_ratios has {len(self.compress_ratios)} entries for {self.num_hidden_layers} layers"
            )
        if any(r < 0 or r == 1 for r in self.compress_ratios):
            raise ValueError("compress_ratios entries are 0 (sliding window only) or 2 and more")
        if self.num_attention_heads % self.o_groups:
            raise ValueError(f"o_groups={self.o_groups} does not divide num_attention_heads={self.num_attention_heads}")
        if self.qk_rope_head_dim % 2 or self.qk_rope_head_dim > min(self.head_dim, self.index_head_dim):
            raise ValueError("qk_rope_head_dim must be even and fit into head_dim and index_head_dim")
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ValueError("num_experts_per_tok is larger than n_routed_experts")
        return self


@dataclass(frozen=True)
class Yarn:
    """YaRN on the compressed layers; fields as in ``rope_scaling``."""

    factor: float
    original_length: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class Config:
    """Sizes of a DeepSeek V4. Names follow ``config.json``; shapes in docs/models.md."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    n_routed_experts: int
    num_experts_per_tok: int
    num_hash_layers: int
    num_nextn_predict_layers: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    sliding_window: int
    compress_ratios: tuple[int, ...]
    rope_theta: float
    compress_rope_theta: float
    yarn: Yarn | None
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    max_position_embeddings: int
    rms_norm_eps: float
    routed_scaling_factor: float
    norm_topk_prob: bool
    swiglu_limit: float
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def ratios(self) -> tuple[int, ...]:
        """Distinct compression ratios of the target's layers, ascending, without 0."""
        return tuple(sorted({r for r in self.compress_ratios if r}))

    def state_width(self, ratio: int) -> int:
        """Compressor channels per row in units of the head size: 2 where windows overlap (ratio 4)."""
        return 2 if ratio == OVERLAPPED_RATIO else 1


OVERLAPPED_RATIO = 4
"""The ratio of CSA layers: their windows overlap and an indexer picks entries. All others are HCA."""


def parse_config(raw: Mapping[str, Any], where: str = "config.json") -> Config:
    """Check the official keys and return a Config.

    Raises ConfigError that names the file, each wrong key and what would be right.
    """
    o = checked(_Official, raw, where)
    fields = {k: getattr(o, k) for k in Config.__dataclass_fields__ if k in _Official.model_fields}
    eos = o.eos_token_id if isinstance(o.eos_token_id, list) else [o.eos_token_id]
    yarn = None
    if o.rope_scaling is not None:
        s = o.rope_scaling
        yarn = Yarn(s.factor, s.original_max_position_embeddings, s.beta_fast, s.beta_slow)
    fields["compress_ratios"] = tuple(o.compress_ratios[: o.num_hidden_layers])
    return Config(**fields, yarn=yarn, eos_token_ids=tuple(t for t in eos if t is not None))


def load_config(path: Path) -> Config:
    """Read ``config.json`` at ``path``. Raises ConfigError."""
    return parse_config(read_json(path), str(path))
