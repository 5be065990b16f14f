"""Speed of every kernel at the sizes of tiny-v4, for a decode tile (8 rows) and a prefill call (64 rows).

    make bench            # save a run
    make bench-compare    # the last run against the one before

Each benchmark also checks its result against a float64 loop or another formula, so a fast wrong kernel fails.
``extra_info`` carries rows, bytes read and FLOPs, from the shapes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks.training.train import HERE, initial
from draftline.stages.kernels import hyper, moe, rope
from draftline.stages.kernels.attention import index_scores, pool, sink_attention
from draftline.stages.kernels.norm import rms_norm
from draftline.stages.models.deepseek_v4 import block
from draftline.stages.models.deepseek_v4.config import Config, parse_config
from draftline.stages.models.deepseek_v4.weights import LayerWeights, Weights, assemble

CONTEXT = 1024
"""Positions that the compressed attentions may look back to: 256 entries of ratio 4, 8 of ratio 128."""


@pytest.fixture(scope="module")
def config() -> Config:
    return parse_config(json.loads((Path(HERE) / "tiny-v4.json").read_text()))


@pytest.fixture(scope="module")
def weights(config) -> Weights:
    return assemble(config, initial(config, seed=1))


@pytest.fixture(params=[8, 64], ids=["tile8", "prefill64"])
def rows(request) -> int:
    return request.param


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.inference_mode():
        yield


def info(benchmark, rows: int, flops: float, *tensors: torch.Tensor) -> None:
    benchmark.extra_info.update(rows=rows, flops=int(flops), bytes=sum(t.numel() * t.element_size() for t in tensors))


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-4, atol=1e-4)


def test_rms_norm(benchmark, config, rows):
    x, w = rand(rows, config.hidden_size), rand(config.hidden_size)
    info(benchmark, rows, 4 * x.numel(), x, w)
    close(benchmark(rms_norm, x, w, 1e-6), F.rms_norm(x.double(), x.shape[1:], w.double(), 1e-6))


def test_project_and_rope(benchmark, config, weights, rows):
    """Query and key-value projections with their norms and rotation."""
    w, x = weights.layers[0].attn, rand(rows, config.hidden_size)
    cos, sin = rope.cos_sin(torch.arange(rows), block.rope_tables(config)[0])
    matrices = (w.wq_a, w.wq_b, w.wkv)
    info(benchmark, rows, sum(2 * rows * m.numel() for m in matrices), *matrices)
    got = benchmark(block.project, config, w, x, cos, sin)
    kv = F.rms_norm(x.double() @ w.wkv.double().T, (config.head_dim,), w.kv_norm.double(), config.rms_norm_eps)
    pairs = torch.view_as_complex(kv[:, -config.qk_rope_head_dim :].reshape(rows, -1, 2).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(cos), torch.atan2(sin, cos)).to(pairs.dtype))
    close(got.kv, torch.cat((kv[:, : -config.qk_rope_head_dim], turned.flatten(1)), dim=1))


def attention_truth(q: torch.Tensor, kv: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bshd,bld->bshl", q.double(), kv.double()) * q.shape[-1] ** -0.5
    weights = torch.where(visible.unsqueeze(2), scores.exp(), 0.0)
    total = weights.sum(-1, keepdim=True) + sinks.double().exp().view(1, 1, -1, 1)
    return torch.einsum("bshl,bld->bshd", weights / total, kv.double())


@pytest.mark.parametrize("kind", ["sliding", "csa", "hca"])
def test_attention(benchmark, config, rows, kind):
    """Sliding window, plus the top-k entries of ratio 4, or all entries of ratio 128."""
    entries = {"sliding": 0, "csa": config.index_topk, "hca": CONTEXT // 128}[kind]
    keys = config.sliding_window + entries
    q, kv = rand(rows, 1, config.num_attention_heads, config.head_dim), rand(rows, keys, config.head_dim)
    visible = torch.rand(rows, 1, keys) < 0.9
    sinks = rand(config.num_attention_heads)
    info(benchmark, rows, 4 * q.numel() * keys, q, kv)
    close(benchmark(sink_attention, q, kv, visible, sinks), attention_truth(q, kv, visible, sinks))


@pytest.mark.parametrize("ratio", [4, 128])
def test_compressor_pool(benchmark, config, rows, ratio):
    n = ratio * config.state_width(ratio)
    kv, gate, ape = rand(rows, n, config.head_dim), rand(rows, n, config.head_dim), rand(n, config.head_dim)
    norm = torch.ones(config.head_dim)
    info(benchmark, rows, 6 * kv.numel(), kv, gate)
    share = (gate.double() + ape.double()).exp()
    truth = (kv.double() * share).sum(1) / share.sum(1)
    close(benchmark(pool, kv, gate, ape, norm, 1e-6), F.rms_norm(truth, truth.shape[1:], norm.double(), 1e-6))


def test_indexer_scores(benchmark, config, rows):
    h, d, e = config.index_n_heads, config.index_head_dim, CONTEXT // 4
    q, keys, heads = rand(rows, 1, h, d), rand(rows, e, d), rand(rows, 1, h)
    info(benchmark, rows, 2 * rows * h * d * e, q, keys)
    truth = torch.einsum("bshd,bed->bshe", q.double(), keys.double()).relu()
    truth = (truth * heads.double().unsqueeze(-1)).sum(2) * (d * h) ** -0.5
    close(benchmark(index_scores, q, keys, heads), truth)


def layer(weights: Weights, hashed: bool) -> LayerWeights:
    return weights.layers[0 if hashed else -1]


@pytest.mark.parametrize("hashed", [True, False], ids=["hash", "gated"])
def test_moe(benchmark, config, weights, rows, hashed):
    """Routing, all routed experts and the shared one."""
    w, x = layer(weights, hashed).ffn, rand(rows, config.hidden_size)
    tokens = torch.arange(rows)
    matrices = (w.w1, w.w2, w.w3, w.shared_w1, w.shared_w2, w.shared_w3)
    info(benchmark, rows, sum(2 * rows * m.numel() for m in matrices), *matrices)

    def run() -> torch.Tensor:
        return block.feed_forward(config, w, x, block.route(config, w, x, tokens))

    got = benchmark(run)
    x64, inter = x[0].double(), config.moe_intermediate_size
    scores = F.softplus(x64 @ w.gate.double().T).sqrt()
    chosen = w.tid2eid[0] if hashed else (scores + w.bias.double()).topk(config.num_experts_per_tok).indices
    share = scores[chosen] / scores[chosen].sum() * config.routed_scaling_factor

    def expert(w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor) -> torch.Tensor:
        return w2.double() @ moe.swiglu(w1.double() @ x64, w3.double() @ x64, config.swiglu_limit)

    truth = expert(w.shared_w1, w.shared_w2, w.shared_w3)
    for e, s in zip(chosen.tolist(), share, strict=True):
        part = slice(e * inter, (e + 1) * inter)
        truth = truth + s * expert(w.w1[part], w.w2[:, part], w.w3[part])
    close(got[0], truth)


def test_hyper_connection(benchmark, config, weights, rows):
    """Collapse and expand around an empty block; the mixing matrix must be doubly stochastic."""
    w = weights.layers[0].hc_attn
    streams = rand(rows, config.hc_mult, config.hidden_size)
    info(benchmark, rows, 2 * rows * w.fn.numel(), streams, w.fn)
    sizes = {"iterations": 20, "eps": config.hc_eps, "norm_eps": config.rms_norm_eps}

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        x, post, comb = hyper.collapse(streams, w.fn, w.base, w.scale, **sizes)
        return hyper.expand(streams, x, post, comb), comb

    _, comb = benchmark(run)
    close(comb.sum(-1), torch.ones(rows, config.hc_mult))
    close(comb.sum(-2), torch.ones(rows, config.hc_mult))


def test_lm_head(benchmark, config, weights, rows):
    streams = rand(rows, config.hc_mult, config.hidden_size)
    info(benchmark, rows, 2 * rows * weights.head.numel(), weights.head)
    got = benchmark(block.logits, config, weights.head, weights.hc_head, weights.norm, streams)
    x = hyper.head(
        streams.double(),
        weights.hc_head.fn,
        weights.hc_head.base,
        weights.hc_head.scale,
        eps=config.hc_eps,
        norm_eps=config.rms_norm_eps,
    ).double()
    close(got, F.rms_norm(x, x.shape[1:], weights.norm.double(), config.rms_norm_eps) @ weights.head.double().T)
