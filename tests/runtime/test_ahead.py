"""Steps prepared while the one before runs: the same tokens, drafts and ends as one after the other."""

from __future__ import annotations

from dataclasses import replace

import drafts
import heads
import numpy as np
import pytest
import torch
from engines import SIZES, engine_of, tiny_model

from draftline.runtime import ahead
from draftline.runtime.engine import Engine
from draftline.runtime.request import Output, Request

NEW = 24


def prompt(length: int, seed: int) -> tuple[int, ...]:
    g = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(2, 256, (length,), generator=g).tolist())


PROMPTS = [prompt(n, i) for i, n in enumerate((1, 9, 126, 40, 371, 3))]


def v4(k: int, graph: str, **sizes: int) -> Engine:
    wanted = replace(SIZES, num_speculative_tokens=k, **sizes)
    return engine_of(tiny_model(wanted), wanted, graph)


def with_head(k: int, graph: str, **sizes: int) -> Engine:
    wanted = replace(SIZES, num_speculative_tokens=k, page_size=64, **sizes)
    return engine_of(heads.model("llama", wanted, "native"), wanted, "mtp.yaml")


def with_draft_model(k: int, graph: str, **sizes: int) -> Engine:
    wanted = replace(SIZES, num_speculative_tokens=k, page_size=64, **sizes)
    target, draft = drafts.idle_behind("llama", 1, "fp32")
    return engine_of(drafts.model(target, draft, wanted, "native"), wanted, "draft-model.yaml")


def run(engine: Engine, overlaps: bool, limits: tuple[int, ...] = (NEW,), each: tuple[int | None, ...] = (None,)):
    """Outputs in order, and how many steps began before the one before had been looked at."""
    engine.overlaps, begun = overlaps, 0
    start = engine.runtime.start

    def counted(bound, follows=False):
        nonlocal begun
        begun += follows
        return start(bound, follows)

    engine.runtime.start = counted
    for i, p in enumerate(PROMPTS):
        engine.add(i, Request(p, limits[i % len(limits)], each[i % len(each)], ignore_eos=True))
    outputs: list[Output] = []
    while engine.num_unfinished:
        outputs += engine.step()
    assert engine.num_free_pages == engine.sizes.geometry().num_pages
    return sorted(outputs, key=lambda o: o.index), begun


@pytest.mark.parametrize(
    ("make", "graph"),
    [(v4, "mtp.yaml"), (v4, "ngram.yaml"), (with_head, ""), (with_draft_model, "")],
    ids=["mtp", "ngram", "head", "draft-model"],
)
@pytest.mark.parametrize("k", [1, 3, 9])
def test_the_same_tokens_and_the_same_drafts(make, graph, k):
    told, none = run(make(k, graph), False)
    got, begun = run(make(k, graph), True)
    assert [(o.token_ids, o.finish_reason, o.counts) for o in got] == [
        (o.token_ids, o.finish_reason, o.counts) for o in told
    ]
    assert none == 0
    assert begun > max(o.counts.steps for o in got) // 2


@pytest.mark.parametrize("graph", ["ar.yaml", "mtp.yaml"])
def test_without_drafts(graph):
    told, _ = run(v4(0, graph), False)
    got, begun = run(v4(0, graph), True)
    assert [o.token_ids for o in got] == [o.token_ids for o in told]
    assert begun > NEW // 2


@pytest.mark.parametrize("k", [3, 9])
def test_limits_and_depths_of_their_own(k):
    """Ends at different steps, in the middle of a window, at the context; some requests never draft."""
    limits, each = (1, 2, 17, 5, 90, 30), (None, 0, 2, None, 1, 0)
    told, _ = run(v4(k, "mtp.yaml"), False, limits, each)
    got, begun = run(v4(k, "mtp.yaml"), True, limits, each)
    assert [(o.token_ids, o.finish_reason) for o in got] == [(o.token_ids, o.finish_reason) for o in told]
    assert {o.finish_reason for o in got} == {"length", "context"}
    assert begun > 0


def test_few_pages_and_a_request_that_is_given_up():
    """Four pages for three requests that need three each; the first to run alone is cancelled while its next step,
    begun ahead, is under way."""
    prompts = [prompt(120, 1), prompt(126, 2), prompt(100, 3)]
    alone, engine = v4(0, "ar.yaml"), v4(3, "mtp.yaml", num_pages=4)
    told = [alone_run(alone, p, 150) for p in prompts]
    engine.overlaps = True
    for i, p in enumerate(prompts):
        engine.add(i, Request(p, 150, ignore_eos=True))
    outputs: dict[int, Output] = {}
    while engine.num_unfinished:
        outputs |= {o.index: o for o in engine.step()}
        if engine.scheduler.preemptions and engine._ahead is not None and 0 not in outputs:
            engine.cancel(0)
    assert engine.scheduler.preemptions > 0
    assert {i: o.finish_reason for i, o in outputs.items()} == {0: "abort", 1: "length", 2: "length"}
    assert 8 < len(outputs[0].token_ids) < 150
    for i, o in outputs.items():
        assert o.token_ids == told[i][: len(o.token_ids)]
    assert engine.num_free_pages == 4


def alone_run(engine: Engine, tokens: tuple[int, ...], new: int) -> tuple[int, ...]:
    engine.add(0, Request(tokens, new, ignore_eos=True))
    while True:
        for output in engine.step():
            return output.token_ids


def test_a_stage_that_raises_in_a_step_that_was_begun_ahead():
    engine = v4(3, "mtp.yaml")
    told, _ = run(v4(3, "mtp.yaml"), False)
    engine.overlaps = True
    target, calls = engine.runtime.model.target, []
    forward = target.forward

    def raises(rows):
        calls.append(1)
        if len(calls) == 40:
            assert engine.runtime._last is not None
            raise RuntimeError("once")
        return forward(rows)

    target.forward = raises
    got, begun = run(engine, True)
    assert len(calls) > 40
    assert begun > 0
    assert [o.token_ids for o in got] == [o.token_ids for o in told]


def test_lines_complete_what_the_driver_could_not_know():
    """By hand: slot 0 got three tokens of a budget of 9; slot 1 is nobody's; slot 2 got the last one that it may;
    slot 3 (a draft model's) got all of its two drafts and one more; slot 4 found no token that its grammar allows."""
    inputs = {
        "tail": np.array([7, -1, 8, 9, 6]),
        "position": np.array([4, -1, 6, 2, 1]),
        "depth": np.array([3, -1, 1, 3, 3]),
        "recent": np.array([[5, 7, -1, -1], [-1] * 4, [8, -1, -1, -1], [9, -1, -1, -1], [6, -1, -1, -1]]),
        "num_recent": np.array([2, 0, 1, 1, 1]),
        "history": np.array([[1, 2, 3, 5, 7, -1, -1, -1, -1]] + [[-1] * 9] * 4),
    }
    lines = np.array(
        [[3, 9, ahead.ALL, 3], [-1] * 4, [1, 1, ahead.ALL, 0], [5, 20, ahead.UNSEEN, 2], [3, 9, ahead.ALL, 3]]
    )
    tokens = np.array([[11, 12, 13, -1], [-1] * 4, [14, -1, -1, -1], [21, 22, 23, -1], [31, -1, -1, -1]])
    ahead.complete(inputs, lines, tokens, np.array([3, 0, 1, 3, 2]))
    assert inputs["tail"].tolist() == [13, -1, -1, 23, -1]
    assert inputs["position"].tolist() == [7, -1, -1, 5, -1]
    assert inputs["depth"].tolist() == [3, -1, -1, 5, -1]
    assert inputs["num_recent"].tolist() == [3, 0, 0, 2, 0]
    assert inputs["recent"][0].tolist() == [11, 12, 13, -1]
    assert inputs["recent"][3].tolist() == [22, 23, -1, -1]
    assert inputs["history"][0].tolist() == [1, 2, 3, 5, 7, 11, 12, 13, -1]
