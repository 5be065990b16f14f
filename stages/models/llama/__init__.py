"""Llama-style decoders, as the registry sees them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from draftline.stages.models.core import BuildOptions, Drafter, Family, Shape, Target

from .config import MODEL_TYPES, Config, load_config
from .model import LlamaTarget, cache_bytes
from .native import NativeLlamaTarget
from .weights import assemble, optional_names, output_names, tensor_specs


def shape_of(c: Config) -> Shape:
    """The compiler's view of a config."""
    return Shape(
        vocab_size=c.vocab_size,
        num_streams=1,
        hidden_size=c.hidden_size,
        max_len=c.max_position_embeddings,
        num_mtp_layers=0,
        ratios=(),
        bos_token_id=c.bos_token_id,
        eos_token_ids=c.eos_token_ids,
        slot_per_row=True,
    )


def _build(path: Path, tensors: Mapping[str, Tensor], o: BuildOptions) -> tuple[Target | None, Drafter | None]:
    if "target" not in o.uses:
        return None, None
    c = load_config(path)
    w = assemble(c, tensors)
    if o.native:
        return NativeLlamaTarget(c, w, o.geometry, o.dtype), None
    return LlamaTarget(c, w, o.geometry, o.dtype, o.device), None


FAMILY = Family(
    model_types=MODEL_TYPES,
    shape=lambda path: shape_of(load_config(path)),
    specs=lambda path: (tensor_specs(c := load_config(path)), optional_names(c)),
    cache_bytes=lambda path, geometry, dtype: cache_bytes(load_config(path), geometry, dtype),
    build=_build,
    native_heads=lambda path: load_config(path).head_dim,
    matrices=lambda path: output_names(load_config(path)),
)
