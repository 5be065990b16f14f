"""Engines for tests: scripted models, tiny random V4s, without files. Helper for tests; no tests in here."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import v4
from scripted import Scripted, Wilful, loaded

from benchmarks.training.train import initial
from draftline.graph.core import Graph
from draftline.graph.yaml import load_graph
from draftline.runtime.deployment import Compiler, Sizes
from draftline.runtime.engine import Engine
from draftline.runtime.inline import InlineRuntime
from draftline.runtime.replicas import generate
from draftline.runtime.request import Output, Request
from draftline.stages.models.core import Loaded
from draftline.stages.models.deepseek_v4 import shape_of
from draftline.stages.models.deepseek_v4.config import Config
from draftline.stages.models.deepseek_v4.model import DeepseekV4Drafter, DeepseekV4Target
from draftline.stages.models.deepseek_v4.weights import Weights, assemble, tensor_specs

SIZES = Sizes(
    num_speculative_tokens=3,
    tile=8,
    max_num_seqs=4,
    max_model_len=384,
    prefill_tile=32,
    page_size=128,
    dtype="fp32",
)


@functools.cache
def tiny(dtype: torch.dtype = torch.float32) -> tuple[Config, Weights]:
    """A random V4 with every layer kind and an MTP block; the indexer really chooses (top-k 8 of up to 96)."""
    c = v4.config(num_nextn_predict_layers=1, hc_sinkhorn_iters=4)
    tensors = initial(c, seed=11)
    specs = tensor_specs(c)
    typed = {n: t.to(dtype) if specs[n].kind == "model" else t for n, t in tensors.items()}
    return c, assemble(c, typed)


def tiny_model(sizes: Sizes, dtype: torch.dtype = torch.float32) -> Loaded:
    """The tiny V4 with fresh caches."""
    c, w = tiny(dtype)
    g, cpu = sizes.geometry(), torch.device("cpu")
    return Loaded(
        shape_of(c), DeepseekV4Target(c, w, g, dtype, cpu), DeepseekV4Drafter(c, w, g, dtype, cpu), g, dtype, cpu
    )


def engine_of(model: Loaded, sizes: Sizes, graph: Graph | str = "mtp.yaml", lookup: Any = None) -> Engine:
    """An engine over a model; prefill as the command line chooses it."""
    graph = load_graph(graph) if isinstance(graph, str) else graph
    prefill = load_graph(graph.prefill if sizes.k_max else "prefill.yaml")
    compiler = Compiler(sizes, model.shape) if lookup is None else Compiler(sizes, model.shape, lookup)
    return Engine(graph, prefill, compiler, InlineRuntime(model, compiler.lookup))


def scripted_engine(target: Scripted, drafter: Wilful | None, graph: str = "mtp.yaml", **sizes: Any) -> Engine:
    """An engine over a scripted target and a wilful drafter."""
    wanted = replace(SIZES, **sizes)
    return engine_of(loaded(target, drafter, wanted.geometry()), wanted, graph)


def run(engine: Engine, prompts: Sequence[Sequence[int]], max_new_tokens: int, **options: Any) -> list[Output]:
    """Outputs of plain token-id prompts."""
    return generate([engine], [Request(tuple(p), max_new_tokens, **options) for p in prompts])
