"""The MTP block against one composed from transformers' decoder layer, hyper head and norms."""

from __future__ import annotations

import copy

import pytest
import torch
import v4
from transformers.masking_utils import create_sliding_window_causal_mask
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4DecoderLayer,
    DeepseekV4HyperHead,
    DeepseekV4RMSNorm,
)

from draftline.stages.caches.core import Geometry
from draftline.stages.models.core import Rows
from draftline.stages.models.deepseek_v4.model import DeepseekV4Drafter
from draftline.stages.models.deepseek_v4.weights import assemble, tensor_specs

LENGTH = 60


class OracleMtp(torch.nn.Module):
    """x = e_proj(enorm(embedding)) + h_proj(hnorm(streams)), a sliding MoE layer, own hc head and norm."""

    def __init__(self, target: torch.nn.Module) -> None:
        super().__init__()
        cfg = copy.deepcopy(target.config)
        cfg.num_hidden_layers, cfg.layer_types, cfg.mlp_layer_types = 1, ["sliding_attention"], ["moe"]
        d = cfg.hidden_size
        self.config = cfg
        self.e_proj, self.h_proj = torch.nn.Linear(d, d, bias=False), torch.nn.Linear(d, d, bias=False)
        self.enorm, self.hnorm, self.norm = (DeepseekV4RMSNorm(d, eps=cfg.rms_norm_eps) for _ in range(3))
        self.block, self.hc_head = DeepseekV4DecoderLayer(cfg, 0), DeepseekV4HyperHead(cfg)

    def forward(self, target: torch.nn.Module, streams: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        e = self.e_proj(self.enorm(target.model.embed_tokens(following)))
        x = e.unsqueeze(2) + self.h_proj(self.hnorm(streams))
        positions = torch.arange(following.shape[1])[None]
        rope = {
            k: target.model.rotary_emb(x[:, :, 0], position_ids=positions, layer_type=k) for k in ("main", "compress")
        }
        mask = create_sliding_window_causal_mask(
            config=self.config, inputs_embeds=x[:, :, 0], attention_mask=None, cache=None, position_ids=positions
        )
        x = self.block(
            x, position_embeddings=rope, position_ids=positions, attention_mask=mask, input_ids=following, cache=None
        )
        return target.lm_head(self.norm(self.hc_head(x)))


@pytest.fixture(scope="module")
def setting():
    torch.manual_seed(0)
    target = v4.oracle()
    mtp = OracleMtp(target).eval()
    mtp.block.mlp.experts.config = target.config
    v4.randomise(mtp, seed=2)
    state = dict(mtp.state_dict().items())
    tensors = v4.official_tensors(target)
    block = {k[len("block.") :]: t for k, t in state.items() if k.startswith("block.")}
    tensors |= v4.layer_tensors(block, "mtp.0.", "", target.config.moe_intermediate_size)
    tensors |= {f"mtp.0.{n}.weight": state[f"{n}.weight"] for n in ("e_proj", "h_proj", "enorm", "hnorm", "norm")}
    tensors |= {f"mtp.0.hc_head_{n}": state[f"hc_head.hc_{n}"] for n in ("fn", "base", "scale")}
    c = v4.config(num_nextn_predict_layers=1)
    assert set(tensors) == set(tensor_specs(c))
    g = torch.Generator().manual_seed(5)
    streams = torch.randn(LENGTH, c.hc_mult, c.hidden_size, generator=g)
    following = torch.randint(2, 256, (LENGTH,), generator=g)
    with torch.no_grad():
        truth = mtp(target, streams[None], following[None])[0]
    return c, assemble(c, tensors), streams, following, truth


@pytest.mark.parametrize("width", [1, 5, 16])
def test_cached_mtp_equals_the_composed_oracle(setting, width):
    c, w, streams, following, truth = setting
    geometry = Geometry(slots=2, max_len=128, page_size=128, num_pages=2, in_flight=16)
    ours = DeepseekV4Drafter(c, w, geometry, torch.float32, torch.device("cpu"))
    got, pages = [], torch.full((2, 1), -1)
    with torch.no_grad():
        for start in range(0, LENGTH, width):
            at = torch.arange(start, min(start + width, LENGTH))
            slots = torch.ones_like(at)
            got.append(ours.logits(ours.forward(Rows(following[at], at, slots, pages), streams[at])))
    assert (torch.cat(got) - truth).abs().max() <= 1e-4
    assert torch.equal(torch.cat(got).argmax(-1), truth.argmax(-1))
