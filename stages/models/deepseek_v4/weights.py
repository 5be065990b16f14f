"""DeepSeek V4's weights as dataclasses, and the table of official tensor names.

Knows: every official name, its shape and its dtype, and where it lands. Does not know: files.

Experts lie side by side here (``w1`` [E·I, D]) and one by one in a checkpoint
(``ffn.experts.7.w1.weight`` [I, D]).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.stages.weights.files import TensorSpec

from .config import OVERLAPPED_RATIO, Config


@dataclass(frozen=True)
class HyperWeights:
    """fn [(2+H)·H, H·D] (or [H, H·D] of a head), base and scale; float32."""

    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True)
class CompressorWeights:
    """wkv and wgate [c·d, D], ape [ratio, c·d], norm [d]; c = 2 where windows overlap, else 1."""

    wkv: Tensor
    wgate: Tensor
    ape: Tensor
    norm: Tensor


@dataclass(frozen=True)
class IndexerWeights:
    """wq_b [h·d, q_lora_rank], weights_proj [h, D], and a compressor of its own for the keys."""

    wq_b: Tensor
    weights_proj: Tensor
    compressor: CompressorWeights


@dataclass(frozen=True)
class AttentionWeights:
    """Low-rank query, one shared key-value head, grouped low-rank output; see docs/models.md for shapes."""

    wq_a: Tensor
    q_norm: Tensor
    wq_b: Tensor
    wkv: Tensor
    kv_norm: Tensor
    wo_a: Tensor
    wo_b: Tensor
    sink: Tensor
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True)
class MoeWeights:
    """gate [E, D]; bias [E] float32 or tid2eid [V, top_k] int64; experts side by side; the shared expert."""

    gate: Tensor
    bias: Tensor | None
    tid2eid: Tensor | None
    w1: Tensor
    w2: Tensor
    w3: Tensor
    shared_w1: Tensor
    shared_w2: Tensor
    shared_w3: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    attn_norm: Tensor
    ffn_norm: Tensor
    hc_attn: HyperWeights
    hc_ffn: HyperWeights
    attn: AttentionWeights
    ffn: MoeWeights


@dataclass(frozen=True)
class MtpWeights:
    """The multi-token-prediction block: it shares embedding and head with the target."""

    e_proj: Tensor
    h_proj: Tensor
    enorm: Tensor
    hnorm: Tensor
    norm: Tensor
    hc_head: HyperWeights
    layer: LayerWeights


@dataclass(frozen=True)
class Weights:
    """A whole model. ``mtp`` is None where the checkpoint has no MTP block."""

    embed: Tensor
    head: Tensor
    norm: Tensor
    hc_head: HyperWeights
    layers: tuple[LayerWeights, ...]
    mtp: MtpWeights | None


def tensor_specs(c: Config) -> dict[str, TensorSpec]:
    """Every official tensor name of a model of this config, with its spec."""
    specs = {
        "embed.weight": TensorSpec((c.vocab_size, c.hidden_size)),
        "head.weight": TensorSpec((c.vocab_size, c.hidden_size)),
        "norm.weight": TensorSpec((c.hidden_size,), "float32"),
        **_hyper(c, "hc_head", c.hc_mult, 1),
    }
    for i, ratio in enumerate(c.compress_ratios):
        specs |= _layer(c, f"layers.{i}.", ratio, hashed=i < c.num_hash_layers)
    for i in range(min(c.num_nextn_predict_layers, 1)):
        p = f"mtp.{i}."
        square = TensorSpec((c.hidden_size, c.hidden_size))
        specs |= {p + "e_proj.weight": square, p + "h_proj.weight": square}
        specs |= {p + f"{n}.weight": TensorSpec((c.hidden_size,), "float32") for n in ("enorm", "hnorm", "norm")}
        specs |= _hyper(c, p + "hc_head", c.hc_mult, 1) | _layer(c, p, 0, hashed=False)
    return specs


def _hyper(c: Config, name: str, rows: int, scales: int) -> dict[str, TensorSpec]:
    return {
        name + "_fn": TensorSpec((rows, c.hc_mult * c.hidden_size), "float32"),
        name + "_base": TensorSpec((rows,), "float32"),
        name + "_scale": TensorSpec((scales,), "float32"),
    }


def _compressor(c: Config, p: str, ratio: int, dim: int) -> dict[str, TensorSpec]:
    width = c.state_width(ratio) * dim
    return {
        p + "wkv.weight": TensorSpec((width, c.hidden_size)),
        p + "wgate.weight": TensorSpec((width, c.hidden_size)),
        p + "ape": TensorSpec((ratio, width), "float32"),
        p + "norm.weight": TensorSpec((dim,), "float32"),
    }


def _layer(c: Config, p: str, ratio: int, *, hashed: bool) -> dict[str, TensorSpec]:
    d, hd, heads = c.hidden_size, c.head_dim, c.num_attention_heads
    mixes = (2 + c.hc_mult) * c.hc_mult
    a = p + "attn."
    specs = {
        p + "attn_norm.weight": TensorSpec((d,), "float32"),
        p + "ffn_norm.weight": TensorSpec((d,), "float32"),
        a + "wq_a.weight": TensorSpec((c.q_lora_rank, d)),
        a + "q_norm.weight": TensorSpec((c.q_lora_rank,), "float32"),
        a + "wq_b.weight": TensorSpec((heads * hd, c.q_lora_rank)),
        a + "wkv.weight": TensorSpec((hd, d)),
        a + "kv_norm.weight": TensorSpec((hd,), "float32"),
        a + "wo_a.weight": TensorSpec((c.o_groups * c.o_lora_rank, heads * hd // c.o_groups)),
        a + "wo_b.weight": TensorSpec((d, c.o_groups * c.o_lora_rank)),
        a + "attn_sink": TensorSpec((heads,), "float32"),
        **_hyper(c, p + "hc_attn", mixes, 3),
        **_hyper(c, p + "hc_ffn", mixes, 3),
    }
    if ratio:
        specs |= _compressor(c, a + "compressor.", ratio, hd)
    if ratio == OVERLAPPED_RATIO:
        specs[a + "indexer.wq_b.weight"] = TensorSpec((c.index_n_heads * c.index_head_dim, c.q_lora_rank))
        specs[a + "indexer.weights_proj.weight"] = TensorSpec((c.index_n_heads, d))
        specs |= _compressor(c, a + "indexer.compressor.", ratio, c.index_head_dim)
    f = p + "ffn."
    specs[f + "gate.weight"] = TensorSpec((c.n_routed_experts, d))
    if hashed:
        specs[f + "gate.tid2eid"] = TensorSpec((c.vocab_size, c.num_experts_per_tok), "int64")
    else:
        specs[f + "gate.bias"] = TensorSpec((c.n_routed_experts,), "float32")
    up, down = TensorSpec((c.moe_intermediate_size, d)), TensorSpec((d, c.moe_intermediate_size))
    for expert in (*(f"experts.{e}" for e in range(c.n_routed_experts)), "shared_experts"):
        specs |= {f"{f}{expert}.{w}.weight": s for w, s in (("w1", up), ("w2", down), ("w3", up))}
    return specs


def assemble(c: Config, tensors: Mapping[str, Tensor]) -> Weights:
    """Official names to dataclasses; tensors must already match ``tensor_specs`` (see weights.load)."""
    t = tensors
    has_mtp = "mtp.0.e_proj.weight" in t
    return Weights(
        embed=t["embed.weight"],
        head=t["head.weight"],
        norm=t["norm.weight"],
        hc_head=_take_hyper(t, "hc_head"),
        layers=tuple(_take_layer(c, t, f"layers.{i}.", r) for i, r in enumerate(c.compress_ratios)),
        mtp=_take_mtp(c, t, "mtp.0.") if has_mtp else None,
    )


def _take_hyper(t: Mapping[str, Tensor], name: str) -> HyperWeights:
    return HyperWeights(t[name + "_fn"], t[name + "_base"], t[name + "_scale"])


def _take_compressor(t: Mapping[str, Tensor], p: str) -> CompressorWeights:
    return CompressorWeights(t[p + "wkv.weight"], t[p + "wgate.weight"], t[p + "ape"], t[p + "norm.weight"])


def _take_layer(c: Config, t: Mapping[str, Tensor], p: str, ratio: int) -> LayerWeights:
    a, f = p + "attn.", p + "ffn."
    indexer = None
    if ratio == OVERLAPPED_RATIO:
        own = _take_compressor(t, a + "indexer.compressor.")
        indexer = IndexerWeights(t[a + "indexer.wq_b.weight"], t[a + "indexer.weights_proj.weight"], own)

    def side_by_side(w: str, dim: int) -> Tensor:
        return torch.cat([t[f"{f}experts.{e}.{w}.weight"] for e in range(c.n_routed_experts)], dim=dim)

    return LayerWeights(
        attn_norm=t[p + "attn_norm.weight"],
        ffn_norm=t[p + "ffn_norm.weight"],
        hc_attn=_take_hyper(t, p + "hc_attn"),
        hc_ffn=_take_hyper(t, p + "hc_ffn"),
        attn=AttentionWeights(
            **{n: t[f"{a}{n}.weight"] for n in ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "wo_a", "wo_b")},
            sink=t[a + "attn_sink"],
            compressor=_take_compressor(t, a + "compressor.") if ratio else None,
            indexer=indexer,
        ),
        ffn=MoeWeights(
            gate=t[f + "gate.weight"],
            bias=t.get(f + "gate.bias"),
            tid2eid=t.get(f + "gate.tid2eid"),
            w1=side_by_side("w1", 0),
            w2=side_by_side("w2", 1),
            w3=side_by_side("w3", 0),
            **{f"shared_{w}": t[f"{f}shared_experts.{w}.weight"] for w in ("w1", "w2", "w3")},
        ),
    )


def _take_mtp(c: Config, t: Mapping[str, Tensor], p: str) -> MtpWeights:
    return MtpWeights(
        **{n: t[f"{p}{n}.weight"] for n in ("e_proj", "h_proj", "enorm", "hnorm", "norm")},
        hc_head=_take_hyper(t, p + "hc_head"),
        layer=_take_layer(c, t, p, 0),
    )


def disassemble(c: Config, w: Weights) -> Iterator[tuple[str, Tensor]]:
    """The inverse of ``assemble``: (official name, tensor) pairs."""
    yield from (("embed.weight", w.embed), ("head.weight", w.head), ("norm.weight", w.norm))
    yield from _give_hyper("hc_head", w.hc_head)
    for i, layer in enumerate(w.layers):
        yield from _give_layer(c, f"layers.{i}.", layer)
    if w.mtp is not None:
        for n in ("e_proj", "h_proj", "enorm", "hnorm", "norm"):
            yield f"mtp.0.{n}.weight", getattr(w.mtp, n)
        yield from _give_hyper("mtp.0.hc_head", w.mtp.hc_head)
        yield from _give_layer(c, "mtp.0.", w.mtp.layer)


def _give_hyper(name: str, w: HyperWeights) -> Iterator[tuple[str, Tensor]]:
    yield from ((name + "_fn", w.fn), (name + "_base", w.base), (name + "_scale", w.scale))


def _give_compressor(p: str, w: CompressorWeights) -> Iterator[tuple[str, Tensor]]:
    yield from ((p + "wkv.weight", w.wkv), (p + "wgate.weight", w.wgate))
    yield from ((p + "ape", w.ape), (p + "norm.weight", w.norm))


def _give_layer(c: Config, p: str, w: LayerWeights) -> Iterator[tuple[str, Tensor]]:
    a, f = p + "attn.", p + "ffn."
    yield from ((p + "attn_norm.weight", w.attn_norm), (p + "ffn_norm.weight", w.ffn_norm))
    yield from _give_hyper(p + "hc_attn", w.hc_attn)
    yield from _give_hyper(p + "hc_ffn", w.hc_ffn)
    for n in ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "wo_a", "wo_b"):
        yield f"{a}{n}.weight", getattr(w.attn, n)
    yield a + "attn_sink", w.attn.sink
    if w.attn.compressor is not None:
        yield from _give_compressor(a + "compressor.", w.attn.compressor)
    if w.attn.indexer is not None:
        yield a + "indexer.wq_b.weight", w.attn.indexer.wq_b
        yield a + "indexer.weights_proj.weight", w.attn.indexer.weights_proj
        yield from _give_compressor(a + "indexer.compressor.", w.attn.indexer.compressor)
    yield f + "gate.weight", w.ffn.gate
    if w.ffn.bias is not None:
        yield f + "gate.bias", w.ffn.bias
    if w.ffn.tid2eid is not None:
        yield f + "gate.tid2eid", w.ffn.tid2eid
    for name, packed, dim in (("w1", w.ffn.w1, 0), ("w2", w.ffn.w2, 1), ("w3", w.ffn.w3, 0)):
        for e, part in enumerate(packed.split(c.moe_intermediate_size, dim)):
            yield f"{f}experts.{e}.{name}.weight", part
        yield f"{f}shared_experts.{name}.weight", getattr(w.ffn, f"shared_{name}")
