"""The head's weights and tensor names. Knows: names and shapes. Does not know: files, the target's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from draftline.stages.models.llama.weights import LayerWeights, assemble_layer, layer_specs
from draftline.stages.weights.files import TensorSpec

from .config import HeadConfig


@dataclass(frozen=True)
class HeadWeights:
    """enorm, hnorm and norm [D] float32; eh_proj [D, 2·D]; one decoder layer; vocab [V'] int64, the tokens that may be
    drafted, or None for all. Embedding and output matrix are the target's."""

    enorm: Tensor
    hnorm: Tensor
    eh_proj: Tensor
    layer: LayerWeights
    norm: Tensor
    vocab: Tensor | None


def head_specs(c: HeadConfig) -> dict[str, TensorSpec]:
    """Every tensor name of the head; names as in DeepSeek V3's MTP layer, without its layer number."""
    d = c.layer.hidden_size
    specs = {f"{n}.weight": TensorSpec((d,), "float32") for n in ("enorm", "hnorm", "shared_head.norm")}
    specs["eh_proj.weight"] = TensorSpec((d, 2 * d))
    if c.draft_vocab_size:
        specs["draft_vocab"] = TensorSpec((c.draft_vocab_size,), "int64")
    return specs | layer_specs(c.layer, "")


def assemble_head(c: HeadConfig, tensors: Mapping[str, Tensor]) -> HeadWeights:
    """The head from the tensors that ``head_specs`` names."""
    return HeadWeights(
        enorm=tensors["enorm.weight"],
        hnorm=tensors["hnorm.weight"],
        eh_proj=tensors["eh_proj.weight"],
        layer=assemble_layer(c.layer, tensors, ""),
        norm=tensors["shared_head.norm.weight"],
        vocab=tensors.get("draft_vocab"),
    )
