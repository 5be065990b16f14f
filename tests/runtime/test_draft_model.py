"""A language model that drafts: the same tokens as plain decoding, and as many accepted as there must be."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import drafts
import llamas
import pytest
import torch
from engines import SIZES as V4_SIZES
from engines import engine_of, run, tiny_model

from draftline.runtime.deployment import Sizes
from draftline.runtime.engine import Engine
from draftline.runtime.request import Output, Request
from draftline.stages.models.core import Rows
from draftline.stages.models.draft import within

SIZES = Sizes(
    num_speculative_tokens=4,
    tile=8,
    max_num_seqs=3,
    max_model_len=192,
    prefill_tile=16,
    page_size=64,
    dtype="fp32",
)
GRAPH = "draft-model.yaml"
NEW = 21


def prompt(n: int) -> list[int]:
    return torch.randint(0, 300, (n,), generator=torch.Generator().manual_seed(n)).tolist()


PROMPTS = [prompt(n) for n in (1, 2, 16, 17, 18, 62, 64, 180)]  # a page of 64, calls of 16, a full context


def llama(dtype: str = "fp32") -> drafts.Parts:
    return llamas.ours("llama", drafts.TYPES[dtype])


@functools.cache
def plain(kernels: str, dtype: str = "fp32") -> list[tuple[int, ...]]:
    """K=0 of the target alone: the truth."""
    sizes = replace(SIZES, num_speculative_tokens=0, dtype=dtype)
    engine = engine_of(llamas.model("llama", sizes, kernels, drafts.TYPES[dtype]), sizes, "ar.yaml")
    return [o.token_ids for o in run(engine, PROMPTS, NEW, ignore_eos=True)]


def all_accepted(outputs: Sequence[Output], k: int) -> None:
    """Each request took as few steps as K+1 tokens per step allow."""
    for o in outputs:
        n = len(o.token_ids)
        assert o.counts.num_accepted_tokens == o.counts.num_draft_tokens == n - o.counts.steps
        assert o.counts.steps == -(-n // (k + 1))


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 9])
def test_no_token_changes(k, kernels):
    sizes = replace(SIZES, num_speculative_tokens=k)
    for draft, accepts in ((drafts.noisy("llama", "fp32"), True), (llamas.ours("llama-tied"), False)):
        engine = engine_of(drafts.model(llama(), draft, sizes, kernels), sizes, GRAPH)
        captured = engine.runtime.captures
        outputs = run(engine, PROMPTS, NEW, ignore_eos=True)
        assert [o.token_ids for o in outputs] == plain(kernels)
        assert engine.runtime.captures == captured
        assert engine.num_free_pages == sizes.geometry().num_pages
        drafted, accepted = (sum(getattr(o.counts, f"num_{w}_tokens") for o in outputs) for w in ("draft", "accepted"))
        assert drafted > accepted
        if accepts:
            assert accepted > 20


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 9])
def test_the_target_as_its_own_draft_model_is_always_right(k, kernels):
    """Which it is only if prefill, positions and catching up are all as they must be."""
    sizes = replace(SIZES, num_speculative_tokens=k)
    outputs = run(
        engine_of(drafts.model(llama(), llama(), sizes, kernels), sizes, GRAPH), PROMPTS, NEW, ignore_eos=True
    )
    assert [o.token_ids for o in outputs] == plain(kernels)
    all_accepted(outputs, k)


@pytest.mark.parametrize("k", [1, 2, 4, 7, 8])
def test_known_acceptance(k):
    """A target whose later layers add nothing, drafted for by its first ones, in bf16."""
    target, draft = drafts.idle_behind("llama", 1, "bf16")
    sizes = replace(SIZES, num_speculative_tokens=k, dtype="bf16")
    outputs = run(engine_of(drafts.model(target, draft, sizes, "native"), sizes, GRAPH), PROMPTS, NEW, ignore_eos=True)
    all_accepted(outputs, k)
    alone = replace(sizes, num_speculative_tokens=0)
    engine = engine_of(drafts.model(target, draft, alone, "native"), alone, "ar.yaml")
    assert [o.token_ids for o in outputs] == [o.token_ids for o in run(engine, PROMPTS, NEW, ignore_eos=True)]


@pytest.mark.parametrize("k", [3, 9])
def test_a_v4_drafts_too(k):
    """Rings, compressed entries and an indexer are position-addressed as pages are: always right about itself."""
    sizes = replace(V4_SIZES, num_speculative_tokens=k)
    twin = replace(tiny_model(sizes), drafter=None, draft_model=tiny_model(sizes).target)
    prompts = [[i % 250 for i in range(n)] for n in (5, 127, 200)]
    outputs = run(engine_of(twin, sizes, GRAPH), prompts, NEW, ignore_eos=True)
    plain_sizes = replace(sizes, num_speculative_tokens=0)
    truth = run(engine_of(tiny_model(plain_sizes), plain_sizes, "ar.yaml"), prompts, NEW, ignore_eos=True)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in truth]
    all_accepted(outputs, k)


@pytest.mark.parametrize("k", [1, 3])
def test_drafts_are_what_the_draft_model_says_in_transformers(k):
    """Step by step by hand, every token by a whole forward: what is drafted, and how much of it stands."""
    sizes = replace(SIZES, num_speculative_tokens=k, max_num_seqs=1)
    theirs, small = llamas.oracle("llama")[0], llamas.oracle("llama-tied")[0]

    def goes_on(model, tokens: list[int], n: int) -> list[int]:
        out = list(tokens)
        for _ in range(n):
            with torch.no_grad():
                out.append(int(model(torch.tensor([out])).logits[0, -1].argmax()))
        return out[len(tokens) :]

    for draft, oracle in ((llamas.ours("llama-tied"), small), (llama(), theirs)):
        model = drafts.model(llama(), draft, sizes, "native")
        engine, greedy = engine_of(model, sizes, GRAPH), model.draft_model.greedy
        drafted: list[int] = []
        model.draft_model.greedy = lambda x, g=greedy, d=drafted: (best := g(x), d.append(int(best)))[0]
        tokens, made = prompt(17), 0
        engine.add(0, Request(tuple(tokens), 12, ignore_eos=True))
        engine.admit()
        [live] = engine.scheduler.live.values()
        while engine.num_unfinished:
            depth = min(k, 12 - made - 1)
            wanted, truth = goes_on(oracle, tokens, depth), goes_on(theirs, tokens, depth + 1)
            accepted = next((i for i in range(depth) if wanted[i] != truth[i]), depth)
            drafted.clear()
            engine.step()
            assert drafted[:depth] == wanted
            assert (live.drafts, live.accepted) == (depth, accepted)
            tokens, made = tokens + truth[: accepted + 1], made + accepted + 1
            assert live.tokens == tokens


def at_depths(engine: Engine, pattern: Sequence[int]) -> Engine:
    """An engine whose requests draft as ``pattern`` says, step by step, in place of always K."""
    wanted = cycle(pattern)
    step, own = engine._finish_step, engine.stepping.depth
    now = next(wanted)

    def finish_step(*args):
        nonlocal now
        yield from step(*args)
        now = next(wanted)

    engine.stepping.depth = lambda live: min(now, own(live))  # type: ignore[method-assign]
    engine._finish_step = finish_step  # type: ignore[method-assign]
    return engine


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize(
    "pattern", [[4, 0], [4, 0, 0, 1], [2, *[0] * 4], [4, 3, 2, 1, 0], [1, *[0] * 5, 4], [3, *[0] * 24]], ids=str
)
def test_a_depth_that_returns_from_zero_is_as_good_as_before(pattern, kernels):
    """K+1 = 5 tokens fit into a step; a longer gap is filled, 16 rows a call. Each draft must stand."""
    engine = at_depths(engine_of(drafts.model(llama(), llama(), SIZES, kernels), SIZES, GRAPH), pattern)
    outputs = run(engine, PROMPTS[:-1], 60, ignore_eos=True)
    for o, truth in zip(outputs, plain(kernels), strict=False):
        assert o.token_ids[:NEW] == truth
        assert o.counts.num_accepted_tokens == o.counts.num_draft_tokens > 0


def test_filling_what_was_missed_is_the_draft_models_alone():
    """The target sees no row again, and its caches stay bitwise what they are."""
    model = drafts.model(llama(), llama(), SIZES, "reference")
    engine = at_depths(engine_of(model, SIZES, GRAPH), [*[0] * 9, 4])
    engine.add(0, Request(tuple(prompt(20)), 30, ignore_eos=True))
    for _ in range(9):
        engine.step()
    seen: list[tuple[str, int]] = []
    for name in ("target", "draft_model"):
        one = getattr(model, name)

        def forward(rows: Rows, own=one.forward, name=name) -> torch.Tensor:
            seen.append((name, int((rows.slots >= 0).sum())))
            return own(rows)

        one.forward = forward
    engine.step()
    # 9 rows that were missed: in one call, without the target; then the tail, three drafts, and the target's window.
    assert seen == [("target", 0), ("draft_model", 9), *[("draft_model", 1)] * 4, ("target", 5)]


def test_one_request_catches_up_with_two_rows_at_most():
    model = drafts.model(llama(), llama(), SIZES, "native")
    engine = engine_of(model, SIZES, GRAPH)
    engine.add(0, Request(tuple(prompt(20)), 30, ignore_eos=True))
    seen = []
    forward = model.draft_model.forward
    model.draft_model.forward = lambda rows: seen.append(int((rows.slots >= 0).sum())) or forward(rows)
    engine.step()
    engine.step()
    assert seen == [16, 3, 1, 1, 1, 1, 2, 1, 1, 1]  # prefill, a first step, a step after one that accepted all


def test_requests_that_do_not_draft_stay_out_of_it():
    engine = engine_of(drafts.model(llama(), llama(), SIZES, "native"), SIZES, GRAPH)
    for i, k in enumerate((None, 0, 2)):
        engine.add(i, Request(tuple(PROMPTS[2 + i]), NEW, k, ignore_eos=True))
    outputs = []
    while engine.num_unfinished:
        outputs += engine.step()
    by_index = {o.index: o for o in outputs}
    assert [by_index[i].token_ids for i in range(3)] == plain("native")[2:5]
    assert by_index[1].counts.num_draft_tokens == 0
    all_accepted([by_index[0]], 4)
    all_accepted([by_index[2]], 2)


def test_a_larger_vocabulary_is_cut_to_the_targets():
    """Ids beyond the target's vocabulary are never drafted, however likely."""
    c, w = llama()
    likely = w.head[:8] * 100
    wide = replace(c, vocab_size=308), replace(w, embed=torch.cat((w.embed, likely)), head=torch.cat((w.head, likely)))
    big = drafts.running(wide, SIZES, "native")
    x = torch.randn(40, 1, c.hidden_size, generator=torch.Generator().manual_seed(0))
    assert (big.greedy(x) >= 300).any()
    assert torch.equal(within(big, 300).greedy(x), drafts.running((c, w), SIZES, "native").greedy(x))
    assert within(big, 308) is big


def test_caches_that_are_lost_are_filled_for_both_models():
    """As after the death of a worker: the journal is all that is left, and every draft stands again."""
    model = drafts.model(llama(), llama(), SIZES, "native")
    engine = engine_of(model, SIZES, GRAPH)
    engine.add(0, Request(tuple(PROMPTS[3]), NEW, ignore_eos=True))
    engine.step()
    engine.step()
    for one in (model.target, model.draft_model):
        for cache in one.caches:
            cache.keys.zero_(), cache.values.zero_()
    for live in engine.scheduler.live.values():
        live.lose()
    outputs: list[Output] = []
    while engine.num_unfinished:
        outputs += engine.step()
    assert outputs[0].token_ids == plain("native")[3]
    all_accepted(outputs, 4)
