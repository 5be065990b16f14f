"""Speed of every stage in the layout that the compiler picks for K = 0, 1, 3, 7, 9, on tiny-v4.

    make bench            # save a run
    make bench-compare    # the last run against the one before

A stage is timed where it stands in a real step: the step runs up to it, then its call is repeated. Stages are
idempotent (caches are position-addressed, outputs never alias inputs), so the repeated call must leave what the
step had left; and the step's tokens must be those of plain decoding.
"""

from __future__ import annotations

import functools

import pytest
import torch

from draftline.graph.core import Graph
from draftline.graph.yaml import load_graph
from draftline.runtime.inline import BoundPlan, ResolvedRun
from draftline.runtime.pipeline import Pipeline, open_pipeline

DEPTHS = (0, 1, 3, 7, 9)
REQUESTS = 4
PROMPTS = [
    "def read_lines(path):\n    ",
    "The following functions are defined in this module:",
    "class Queue:\n    def __init__(self, maxsize=0):\n        self.",
    "import os\nimport sys\n\nfor name in os.listdir(",
]


@functools.cache
def plain() -> list[tuple[int, ...]]:
    """The tokens of plain decoding."""
    outputs = open_pipeline("ar.yaml", max_num_seqs=REQUESTS).generate(PROMPTS, max_new_tokens=24, ignore_eos=True)
    return [o.token_ids for o in outputs]


def at_step(k: int) -> tuple[Pipeline, BoundPlan]:
    """An engine two steps into its prompts, and the plan of the third with its metadata filled."""
    graph: Graph = load_graph("mtp.yaml")
    pipeline = open_pipeline(graph, num_speculative_tokens=k, max_num_seqs=REQUESTS)
    engine = pipeline.engine
    for i, prompt in enumerate(PROMPTS):
        engine.add(i, pipeline.request(prompt, 24, ignore_eos=True))
    for _ in range(2):
        engine.step()
    return pipeline, engine.prepare_step()[0]


def work(run: ResolvedRun, pipeline: Pipeline) -> dict[str, int]:
    """Rows of the call, and the bytes and FLOPs of the matrices it goes through (2 per weight and row)."""
    w, stage = pipeline.engine.runtime.model.target.weights, run.run.stage
    size = pipeline.prepared.sizes
    head = w.head.numel()
    layer = [sum(t.numel() for t in _tensors(each)) for each in (*w.layers, w.mtp)]
    weights, rows = 0, REQUESTS
    if stage == "verify":
        weights, rows = sum(layer[:-1]) + head, size.tile
    elif stage == "draft.mtp":
        weights = layer[-1] + head
        rows = REQUESTS if run.run.iteration else REQUESTS * (size.num_speculative_tokens + 1)
    moved = [t for t in (*run.inputs.values(), *run.outputs.values()) if t is not None]
    return {"rows": rows, "flops": 2 * weights * rows, "bytes": 4 * weights + sum(t.nbytes for t in moved)}


def _tensors(tree: object) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree] if tree.is_floating_point() else []
    return [t for value in getattr(tree, "__dict__", {}).values() for t in _tensors(value)]


CASES = [(k, op) for k in DEPTHS for op in ("draft", "pad", "verify", "accept", "commit") if k or op != "draft"]


@pytest.mark.parametrize(("k", "name"), CASES)
def test_stage(benchmark, k, name):
    pipeline, bound = at_step(k)
    timed = None
    with torch.inference_mode():
        for run, wave in bound.active_runs():
            run.stage(run.run.call(wave), run.inputs, run.outputs)
            if timed is None and run.run.node.rpartition(".")[2] == name:
                before = {port: t.clone() for port, t in run.outputs.items()}
                benchmark.extra_info.update(work(run, pipeline), layout=str(bound.plan.layout.chosen), k=k)
                benchmark(run.stage, run.run.call(wave), run.inputs, run.outputs)
                timed = all(torch.equal(run.outputs[port], t) for port, t in before.items())
    assert timed
    tokens, counts = bound.outputs["tokens"], bound.outputs["count"]
    for slot, truth in enumerate(plain()):
        live = pipeline.engine.journal(slot)
        step = tokens[slot, : counts[slot]].tolist()
        assert list(truth[len(live) : len(live) + len(step)]) == step[: len(truth) - len(live)]


@pytest.mark.parametrize("k", DEPTHS)
def test_step(benchmark, k):
    """A whole step of four requests, driver included: schedule, run, post-process."""
    pipeline, bound = at_step(k)
    benchmark.extra_info.update(k=k, layout=str(bound.plan.layout.chosen), rows=REQUESTS * (k + 1))

    def start() -> tuple[tuple[()], dict[str, object]]:
        engine = pipeline.engine
        for i, prompt in enumerate(PROMPTS[: REQUESTS - engine.num_unfinished]):
            engine.add(i, pipeline.request(prompt, 24, ignore_eos=True))
        return (), {}

    benchmark.pedantic(pipeline.engine.step, setup=start, rounds=30)
    while pipeline.engine.num_unfinished:
        for output in pipeline.engine.step():
            assert output.token_ids == plain()[PROMPTS.index(pipeline.text.decode(output.prompt))]
