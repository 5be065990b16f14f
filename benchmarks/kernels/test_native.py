"""Speed of the native kernels at SmolLM2-135M's sizes: six of its layers, and its output matrix, per number of rows.

Each benchmark also checks its result against plain torch. ``extra_info``: rows, FLOPs, and the bytes of weights that a
call must read at least (``bytes`` over the median is the bandwidth that was reached).
"""

from __future__ import annotations

import pytest
import torch

from draftline.stages.caches.core import Geometry
from draftline.stages.kernels.native.decoder import OutputMatrix
from draftline.stages.kernels.norm import rms_norm
from draftline.stages.models.core import Rows
from draftline.stages.models.llama.config import Config, parse_config
from draftline.stages.models.llama.model import LlamaTarget
from draftline.stages.models.llama.native import NativeLlamaTarget
from draftline.stages.models.llama.weights import Weights, assemble, tensor_specs

SHAPE = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
VOCAB, CONTEXT = 49152, 256
GEOMETRY = Geometry(slots=1, max_len=512, page_size=64, num_pages=8, in_flight=64)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@pytest.fixture(scope="module", params=DTYPES)
def model(request) -> tuple[Config, Weights, torch.dtype]:
    c, g = parse_config(SHAPE), torch.Generator().manual_seed(1)
    tensors = {}
    for name, spec in tensor_specs(c).items():
        one = len(spec.shape) == 1
        value = torch.ones(spec.shape) if one else torch.randn(spec.shape, generator=g) * spec.shape[1] ** -0.5
        tensors[name] = value if one else value.to(DTYPES[request.param])
    return c, assemble(c, tensors), DTYPES[request.param]


def rows(n: int, first: int = 0) -> Rows:
    tokens = torch.randint(0, 512, (n,), generator=torch.Generator().manual_seed(n))
    return Rows(tokens, torch.arange(first, first + n), torch.zeros(n, dtype=torch.long), torch.arange(8)[None])


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64])
def test_decoder_stack(benchmark, model, n):
    c, w, dtype = model
    native, plain = NativeLlamaTarget(c, w, GEOMETRY, dtype), LlamaTarget(c, w, GEOMETRY, dtype, torch.device("cpu"))
    with torch.inference_mode():
        for start in range(0, CONTEXT, 64):
            native.forward(rows(64, start))
            plain.forward(rows(64, start))
        call = rows(n, CONTEXT)
        got = benchmark(native.forward, call)
        want = plain.forward(call)
    assert (got - want).abs().max() <= (1e-4 if dtype == torch.float32 else 0.05) * want.abs().max()
    weights = [t for layer in w.layers for t in vars(layer).values() if t is not None]
    values = sum(t.numel() for t in weights)
    benchmark.extra_info.update(rows=n, flops=2 * n * values, bytes=sum(t.nbytes for t in weights))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 8])
def test_output_matrix(benchmark, n, dtype):
    g = torch.Generator().manual_seed(2)
    matrix = (torch.randn(VOCAB, 576, generator=g) * 576**-0.5).to(DTYPES[dtype])
    x, norm = torch.randn(n, 576, generator=g).to(DTYPES[dtype]), torch.ones(576)
    output = OutputMatrix(norm, matrix, 1e-5)
    with torch.inference_mode():
        got = benchmark(output.best, x)
        logits = torch.nn.functional.linear(rms_norm(x, norm, 1e-5).float(), matrix.float())
    best = logits.max(-1).values
    assert (best - logits.gather(1, got[:, None])[:, 0]).max() <= 1e-2
    benchmark.extra_info.update(rows=n, flops=2 * n * matrix.numel(), bytes=matrix.nbytes)
