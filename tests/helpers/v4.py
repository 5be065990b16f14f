"""A tiny random DeepSeek V4, in transformers and in our own format. Helper for tests; no tests in here."""

from __future__ import annotations

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from draftline.stages.models.deepseek_v4.config import Config, parse_config

RAW = {
    "model_type": "deepseek_v4",
    "vocab_size": 256,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "num_hash_layers": 2,
    "num_nextn_predict_layers": 0,
    "index_n_heads": 32,  # with few heads, ReLU scores tie at exactly 0 and top-k picks differ between engines
    "index_head_dim": 16,
    "index_topk": 8,
    "sliding_window": 8,
    "compress_ratios": [0, 4, 128, 4, 128],
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "swiglu_limit": 10.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

RENAMES = (
    ("attn.indexer.compressor.", "self_attn.compressor.indexer."),
    ("attn.indexer.weights_proj.", "self_attn.compressor.indexer.scorer.weights_proj."),
    ("attn.indexer.wq_b.", "self_attn.compressor.indexer.q_b_proj."),
    ("attn.compressor.", "self_attn.compressor."),
    ("attn.attn_sink", "self_attn.sinks"),
    ("attn.wq_a.", "self_attn.q_a_proj."),
    ("attn.q_norm.", "self_attn.q_a_norm."),
    ("attn.wq_b.", "self_attn.q_b_proj."),
    ("attn.wkv.", "self_attn.kv_proj."),
    ("attn.kv_norm.", "self_attn.kv_norm."),
    ("attn.wo_a.", "self_attn.o_a_proj."),
    ("attn.wo_b.", "self_attn.o_b_proj."),
    ("attn_norm.", "input_layernorm."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("hc_attn_", "attn_hc."),
    ("hc_ffn_", "ffn_hc."),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn.gate.", "mlp.gate."),
    ("ffn.shared_experts.w1.", "mlp.shared_experts.gate_proj."),
    ("ffn.shared_experts.w2.", "mlp.shared_experts.down_proj."),
    ("ffn.shared_experts.w3.", "mlp.shared_experts.up_proj."),
)
"""Official name inside a layer → transformers' name. Written by hand, independent of transformers' own table."""


def config(**changes: object) -> Config:
    return parse_config({**RAW, **changes})


def oracle_config(**changes: object) -> DeepseekV4Config:
    raw = {**RAW, **changes}
    rope = raw.pop("rope_scaling")
    assert isinstance(rope, dict)
    raw["compress_ratios"] = list(raw["compress_ratios"])[: raw["num_hidden_layers"]]  # type: ignore[call-overload]
    raw.pop("model_type")
    return DeepseekV4Config(
        **raw, rope_parameters={"rope_type": "yarn", **{k: v for k, v in rope.items() if k != "type"}}
    )


def randomise(module: torch.nn.Module, seed: int = 1) -> None:
    """Every parameter and buffer that matters gets values that matter."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if "sinks" in name or "position_bias" in name or name.endswith("base"):
                p.normal_(0, 0.5, generator=g)
            elif p.dim() >= 2:
                p.normal_(0, 0.15, generator=g)
            elif name.endswith("scale"):
                p.fill_(1.0)
            else:
                p.add_(torch.randn(p.shape, generator=g) * 0.1)
        for name, b in module.named_buffers():
            if "tid2eid" in name:
                experts = RAW["n_routed_experts"]
                b.copy_(torch.stack([torch.randperm(experts, generator=g)[: b.shape[1]] for _ in range(b.shape[0])]))  # type: ignore[call-overload]
            if "e_score_correction_bias" in name:
                b.normal_(0, 0.1, generator=g)


def oracle(**changes: object) -> DeepseekV4ForCausalLM:
    model = DeepseekV4ForCausalLM(oracle_config(**changes)).eval()
    model.set_experts_implementation("eager")
    randomise(model)
    return model


def layer_tensors(state: dict[str, torch.Tensor], ours: str, theirs: str, inter: int) -> dict[str, torch.Tensor]:
    """One layer's tensors under official names; ``theirs`` is the prefix in transformers' state dict."""
    out = {}
    experts = {k: v for k, v in state.items() if k.startswith(theirs + "mlp.experts.")}
    for e in range(RAW["n_routed_experts"]):  # type: ignore[call-overload]
        gate_up = experts[theirs + "mlp.experts.gate_up_proj"][e]
        out[f"{ours}ffn.experts.{e}.w1.weight"] = gate_up[:inter].clone()
        out[f"{ours}ffn.experts.{e}.w3.weight"] = gate_up[inter:].clone()
        out[f"{ours}ffn.experts.{e}.w2.weight"] = experts[theirs + "mlp.experts.down_proj"][e].clone()
    inner = {"wkv": "kv_proj", "wgate": "gate_proj", "ape": "position_bias", "norm": "kv_norm"}
    for key, value in state.items():
        if not key.startswith(theirs) or key in experts:
            continue
        rest = key[len(theirs) :]
        for official, name in RENAMES:
            if not rest.startswith(name):
                continue
            tail = rest[len(name) :]
            if "compressor." in official and official.endswith("compressor."):
                part = tail.split(".")[0]
                back = {v: k for k, v in inner.items()}
                if part not in back:
                    continue
                tail = tail.replace(part, back[part], 1)
            out[ours + official + tail] = value.clone()
            break
        else:
            raise AssertionError(f"no official name for {key}")
    return out


def official_tensors(model: DeepseekV4ForCausalLM) -> dict[str, torch.Tensor]:
    """A transformers model's weights under the official checkpoint names."""
    state = model.state_dict()
    out = {
        "embed.weight": state["model.embed_tokens.weight"],
        "head.weight": state["lm_head.weight"],
        "norm.weight": state["model.norm.weight"],
        "hc_head_fn": state["model.hc_head.hc_fn"],
        "hc_head_base": state["model.hc_head.hc_base"],
        "hc_head_scale": state["model.hc_head.hc_scale"],
    }
    for i in range(model.config.num_hidden_layers):
        out |= layer_tensors(state, f"layers.{i}.", f"model.layers.{i}.", model.config.moe_intermediate_size)
    return {k: v.clone() for k, v in out.items()}
