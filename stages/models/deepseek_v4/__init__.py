"""DeepSeek V4, as the registry sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from draftline.stages.models.core import BuildOptions, Drafter, Family, Shape, Target

from .config import Config, load_config
from .model import DeepseekV4Drafter, DeepseekV4Target, cache_bytes
from .weights import assemble, tensor_specs


def shape_of(c: Config) -> Shape:
    """The compiler's view of a config."""
    return Shape(
        vocab_size=c.vocab_size,
        num_streams=c.hc_mult,
        hidden_size=c.hidden_size,
        max_len=c.max_position_embeddings,
        num_mtp_layers=c.num_nextn_predict_layers,
        ratios=c.ratios,
        bos_token_id=c.bos_token_id,
        eos_token_ids=c.eos_token_ids,
        slot_per_row=True,
        rings=True,
    )


def _build(path: Path, tensors: Mapping[str, Tensor], o: BuildOptions) -> tuple[Target | None, Drafter | None]:
    c = load_config(path)
    w = assemble(c, tensors)
    target = DeepseekV4Target(c, w, o.geometry, o.dtype, o.device) if "target" in o.uses else None
    drafts = w.mtp is not None and "drafter" in o.uses
    return target, DeepseekV4Drafter(c, w, o.geometry, o.dtype, o.device) if drafts else None


FAMILY = Family(
    model_types=("deepseek_v4",),
    shape=lambda path: shape_of(load_config(path)),
    specs=lambda path: (tensor_specs(load_config(path)), ()),
    cache_bytes=lambda path, geometry, dtype: cache_bytes(load_config(path), geometry, dtype),
    build=_build,
    matrices=lambda path: ("embed.weight", "head.weight"),
)
