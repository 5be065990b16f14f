"""Shared prefixes: a hit gives bitwise the rows, the tokens and the drafts of a miss, and nothing is found before it is
written."""

from __future__ import annotations

from dataclasses import replace

import drafts
import heads
import llamas
import pytest
import torch
from engines import SIZES, engine_of, run, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from recorder import Recorder

from draftline.runtime.engine import Engine
from draftline.runtime.pages import PagePool
from draftline.runtime.prefix import keys_of
from draftline.runtime.request import Request
from draftline.stages.caches.core import copy_rings

PAGE, NEW = 128, 14


def prompt(length: int, seed: int) -> list[int]:
    g = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(2, 256, (length,), generator=g).tolist()


SYSTEM = prompt(260, 1)
PROMPTS = [SYSTEM + prompt(n, 2 + i) for i, n in enumerate((1, 30, 60))]
SIZE = replace(SIZES, max_num_seqs=2, snapshots=8)


def v4(k: int, shares: bool, dtype: str = "fp32") -> Engine:
    sizes = replace(SIZE, num_speculative_tokens=k, prefix_caching=shares, dtype=dtype)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return engine_of(tiny_model(sizes, types[dtype]), sizes, "mtp.yaml" if k else "ar.yaml")


def llama(k: int, shares: bool, kernels: str) -> Engine:
    sizes = replace(SIZE, num_speculative_tokens=k, prefix_caching=shares, page_size=64, kernels=kernels)
    if not k:
        return engine_of(llamas.model("llama", sizes, kernels), replace(sizes, snapshots=0), "ar.yaml")
    return engine_of(heads.model("llama", sizes, kernels), sizes, "mtp.yaml")


def with_draft_model(k: int, shares: bool) -> Engine:
    sizes = replace(SIZE, num_speculative_tokens=k, prefix_caching=shares, page_size=64, snapshots=0)
    target, draft = drafts.idle_behind("llama", 1, "fp32")
    return engine_of(drafts.model(target, draft, sizes, "native"), sizes, "draft-model.yaml")


ENGINES = {
    "v4": v4,
    "v4-bf16": lambda k, shares: v4(k, shares, "bf16"),
    "llama": lambda k, shares: llama(k, shares, "reference"),
    "llama-native": lambda k, shares: llama(k, shares, "native"),
    "draft-model": with_draft_model,
}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("k", [0, 1, 3, 9])
def test_a_hit_is_a_miss_but_for_the_work(kind, k):
    """The same tokens, and the same drafts accepted: so target's and drafter's caches are those of a miss."""
    if kind == "draft-model" and not k:
        k = 2
    alone, shared = ENGINES[kind](k, False), ENGINES[kind](k, True)
    told = [run(alone, [p], NEW, ignore_eos=True)[0] for p in PROMPTS]
    got = [run(shared, [p], NEW, ignore_eos=True)[0] for p in PROMPTS]
    assert [(o.token_ids, o.counts) for o in got] == [(o.token_ids, o.counts) for o in told]
    page = shared.sizes.page_size
    usage = shared.scheduler.prefix.usage
    assert usage.queries == sum(len(p) - 1 for p in PROMPTS)
    assert usage.hits == 2 * (len(SYSTEM) // page * page - 1)
    rows = [e.runtime.totals.steps for e in (alone, shared)]
    assert rows[1] < rows[0]  # fewer calls
    assert shared.num_free_pages == shared.sizes.geometry().num_pages


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_logits_behind_a_hit_are_bitwise_those_of_a_miss(dtype, k):
    found = []
    for shares in (False, True):
        engine = v4(k, shares, dtype)
        run(engine, [PROMPTS[0]], 2, ignore_eos=True)
        recorder = Recorder(engine.runtime.model.target)
        run(engine, [PROMPTS[1]], NEW, ignore_eos=True)
        found.append(recorder.rows)
    miss, hit = found
    assert miss.keys() == hit.keys()
    assert all(torch.equal(a[1], b[1]) for key in miss for a, b in zip(miss[key], hit[key], strict=True))
    assert len(miss) >= NEW


def test_requests_side_by_side_share_pages_and_give_them_back():
    engine = v4(3, True)
    run(engine, [PROMPTS[0]], 1)
    free = engine.num_free_pages
    for i in (1, 2):
        engine.add(i, Request(tuple(PROMPTS[i]), 40, ignore_eos=True))
    engine.step()
    first, second = (engine.scheduler.pages.held(live.slot.index) for live in engine.scheduler.by_arrival)
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])
    assert engine.num_free_pages == free - 2 - 1 - 1
    while engine.num_unfinished:
        engine.step()
    assert engine.num_free_pages == free


@pytest.mark.parametrize(("failing", "pages"), [(4, 0), (5, 1)], ids=["the call that fills a page", "the one after"])
def test_nothing_is_found_before_it_is_written(failing, pages):
    """A prompt one of whose calls of 32 rows raises: what that call was to leave, pages and rings, is not there."""
    engine = v4(3, True)
    target, calls = engine.runtime.model.target, []
    forward = target.forward

    def raises(rows):
        calls.append(1)
        if len(calls) == failing:
            raise RuntimeError("out of luck")
        return forward(rows)

    target.forward = raises
    engine.add(0, Request(tuple(PROMPTS[1]), 2, ignore_eos=True))
    engine.step()
    keys, prefix = keys_of(PROMPTS[1], PAGE), engine.scheduler.prefix
    assert engine.scheduler.pages.known(keys) == pages
    assert len(prefix.find(keys).keys) == pages
    assert (prefix.find(keys).ring >= 0) == (pages > 0)
    target.forward = forward
    [again] = run(engine, [PROMPTS[1]], NEW, ignore_eos=True)
    assert prefix.usage.hits == pages * PAGE - (pages > 0)
    assert engine.scheduler.pages.known(keys) == 2
    assert len(prefix.find(keys).keys) == 2
    assert again.token_ids == run(v4(3, False), [PROMPTS[1]], NEW, ignore_eos=True)[0].token_ids


def test_rings_kept_by_a_call_that_failed_are_not_found():
    """The drafter raises after the target: the target's rings were copied, and still nobody may have them."""
    engine = v4(3, True)
    drafter, calls = engine.runtime.model.drafter, []
    forward = drafter.forward

    def raises(rows, hidden):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("out of luck")
        return forward(rows, hidden)

    drafter.forward = raises
    engine.add(0, Request(tuple(PROMPTS[1]), 2, ignore_eos=True))
    engine.step()
    assert len(calls) == 4
    assert engine.scheduler.prefix._rings == {}
    assert len(engine.scheduler.prefix._free) == 8


def test_a_page_that_the_tail_fills_is_not_shared():
    """The tail's row is a verify call's, which rounds otherwise: of 256 tokens, one page is made of prompt rows, also
    where a longer prompt has left both."""
    engine, plain = v4(3, True), v4(3, False)
    text = prompt(2 * PAGE, 9)
    order = [text, text, text + prompt(9, 10), text]
    got, hits = [], []
    for one in order:
        before = engine.scheduler.prefix.usage.hits
        got.append(run(engine, [one], NEW, ignore_eos=True)[0])
        hits.append(engine.scheduler.prefix.usage.hits - before)
    assert hits == [0, PAGE - 1, PAGE - 1, PAGE - 1]
    assert engine.scheduler.pages.known(keys_of(text, PAGE)) == 2
    told = [run(plain, [one], NEW, ignore_eos=True)[0] for one in order]
    assert [(o.token_ids, o.counts) for o in got] == [(o.token_ids, o.counts) for o in told]


def test_rings_that_somebody_is_about_to_start_from_are_not_given_away():
    """One snapshot. A long prompt is filled first, in pieces, and would keep its rings where those of the second
    request's prefix are, which has found them and waits."""
    sizes = replace(SIZE, num_speculative_tokens=3, prefix_caching=True, snapshots=1, max_num_batched_tokens=40)
    engine, plain = engine_of(tiny_model(sizes), sizes), v4(3, False)
    run(engine, [PROMPTS[0]], 1)
    texts = [prompt(270, 30), PROMPTS[1]]
    for i, text in enumerate(texts):
        engine.add(i, Request(tuple(text), NEW, ignore_eos=True))
    outputs = {}
    while engine.num_unfinished:
        outputs |= {o.index: o for o in engine.step()}
    told = [run(plain, [text], NEW, ignore_eos=True)[0] for text in texts]
    assert engine.scheduler.prefix.usage.hits == 2 * PAGE - 1
    assert [(outputs[i].token_ids, outputs[i].counts) for i in (0, 1)] == [(o.token_ids, o.counts) for o in told]


def test_a_prompt_that_differs_in_its_first_token_finds_nothing():
    engine = v4(3, True)
    run(engine, [PROMPTS[0]], 1)
    other = [PROMPTS[0][0] + 1, *PROMPTS[0][1:]]
    plain = v4(3, False)
    assert run(engine, [other], NEW)[0].token_ids == run(plain, [other], NEW)[0].token_ids
    assert engine.scheduler.prefix.usage.hits == 0


def test_rings_run_out_and_the_oldest_go():
    """Two snapshots, prompts that each want two: what is found is right, whatever was thrown away."""
    sizes = replace(SIZE, num_speculative_tokens=3, prefix_caching=True, snapshots=2, max_num_seqs=2)
    engine, plain = engine_of(tiny_model(sizes), sizes), v4(3, False)
    texts = [prompt(270, 20 + i) for i in range(3)]
    order = [0, 1, 2, 2, 0, 1, 1]
    got = [run(engine, [texts[i]], NEW, ignore_eos=True)[0] for i in order]
    told = [run(plain, [t], NEW, ignore_eos=True)[0] for t in texts]
    assert [(o.token_ids, o.counts) for o in got] == [(told[i].token_ids, told[i].counts) for i in order]
    assert engine.scheduler.prefix.usage.hits == 2 * 255  # the two that come at once again


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 39))
def test_keys_name_a_page_and_all_before_it(tokens, changed):
    keys = keys_of(tokens, 4)
    assert len(keys) == len(tokens) // 4
    if changed < len(tokens):
        other = list(tokens)
        other[changed] += 1
        same = [a == b for a, b in zip(keys, keys_of(other, 4), strict=True)]
        assert same == [i < changed // 4 for i in range(len(keys))]


def test_the_page_that_waited_longest_goes_first_and_the_head_of_a_prefix_last():
    pool = PagePool(4, page_size=8, slots=2)
    assert pool.reserve(0, 16) == (0, 1)
    pool.publish(0, 0, b"a")
    pool.publish(0, 1, b"b")
    pool.release(0)
    assert pool.num_free == 4
    assert pool.known([b"a", b"b"]) == 2
    assert pool.reserve(0, 24) == (2, 3, 1)  # blank pages first, then the end of the prefix
    assert pool.known([b"a", b"b"]) == 1
    pool.share(1, [b"a"])
    assert (pool.held(1), pool.num_free) == ((0,), 0)
    pool.release(1)
    pool.forget()
    assert pool.known([b"a"]) == 0
    assert pool.num_free == 1


def test_of_two_pages_with_the_same_contents_one_is_found():
    """Two requests that computed the same prefix side by side; each page is free once, whoever goes first."""
    pool = PagePool(3, page_size=8, slots=2)
    for slot in (0, 1):
        pool.reserve(slot, 8)
        pool.publish(slot, 0, b"a")
    pool.release(0)
    pool.release(1)
    assert pool.num_free == 3
    assert pool.reserve(0, 16) == (1, 2)  # what nobody can find goes first
    pool.share(1, [b"a"])
    assert (pool.held(1), pool.num_free) == ((0,), 0)


def test_whole_rings_are_copied_and_nothing_else():
    ring = torch.arange(5 * 3 + 2.0).unsqueeze(1)
    before = ring.clone()
    copy_rings(ring, 3, torch.tensor([4, -1, 0]), torch.tensor([1, 2, -1]))
    assert torch.equal(ring[3:6], before[12:15])
    kept = [i for i in range(15) if not 3 <= i < 6]
    assert torch.equal(ring[kept], before[kept])
