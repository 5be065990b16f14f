"""Who runs: budget, admission by pages, preemption with replay, cancelling; whatever happens, K=0's tokens and all
pages free again."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise
from types import MethodType

import pytest
import torch
from engines import SIZES, engine_of, run, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.graph.errors import CapacityError, UsageError
from draftline.graph.yaml import load_graph
from draftline.runtime.engine import Engine
from draftline.runtime.pipeline import prepare
from draftline.runtime.request import Output, Request
from draftline.runtime.scheduler import Scheduler

SMALL = replace(SIZES, max_num_seqs=4, max_model_len=384, prefix_caching=True, snapshots=6)
NEW = 12


def prompt(length: int, seed: int) -> tuple[int, ...]:
    g = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(2, 256, (length,), generator=g).tolist())


SHARED = prompt(140, 5)  # more than a page of 128
PROMPTS = [prompt(120, 1), prompt(126, 2), SHARED + prompt(9, 3), SHARED + prompt(40, 4), prompt(3, 6), prompt(250, 7)]


@functools.cache
def truth(new: int = NEW, first: int = 6) -> list[tuple[int, ...]]:
    """Plain decoding, one at a time, nothing shared."""
    sizes = replace(SIZES, num_speculative_tokens=0, max_num_seqs=1)
    one = engine_of(tiny_model(sizes), sizes, "ar.yaml")
    return [o.token_ids for o in run(one, PROMPTS[:first], new, ignore_eos=True)]


def engine(k: int, **sizes: int) -> Engine:
    wanted = replace(SMALL, num_speculative_tokens=k, **sizes)
    return engine_of(tiny_model(wanted), wanted, "mtp.yaml" if k else "ar.yaml")


def all_free(one: Engine) -> bool:
    return one.num_free_pages == one.sizes.geometry().num_pages and one.scheduler.slots.num_free == SMALL.max_num_seqs


@pytest.mark.parametrize("k", [0, 1, 3, 9])
def test_preempted_requests_go_on_where_they_were(k):
    """Each of three requests grows from one or two pages to three, and there are four."""
    one = engine(k, num_pages=4)
    assert [o.token_ids for o in run(one, PROMPTS[:3], 150, ignore_eos=True)] == truth(150, 3)
    assert one.scheduler.preemptions > 0
    assert all_free(one)


def test_the_latest_arrival_is_preempted_and_comes_back_first():
    one = engine(1, num_pages=4)
    for i in range(3):
        one.add(i, Request(PROMPTS[i], 150, ignore_eos=True))
    order: list[int] = []
    while not one.scheduler.preemptions:
        order += [o.index for o in one.step()]
    assert order == []
    assert [live.index for live in one.scheduler.by_arrival] == [0]
    assert [live.index for live in one.scheduler.waiting] == [1, 2]
    assert 8 < one.scheduler.waiting[0].made < 150
    while one.num_unfinished:
        order += [o.index for o in one.step()]
    assert order == [0, 1, 2]


def test_a_long_prompt_does_not_stop_those_who_decode():
    """A budget of 40 rows: a prompt of 250 is filled in pieces of at most that, one decode step behind each."""
    one = engine(3, max_num_batched_tokens=40)
    one.add(0, Request(PROMPTS[4], 60, ignore_eos=True))
    one.step()
    one.add(1, Request(PROMPTS[5], NEW, ignore_eos=True))
    live = one.scheduler.live
    pieces, made = [0], [live[0].made]
    while pieces[-1] < 249:
        one.step()
        pieces.append(live[1].filled)
        made.append(live[0].made)
    assert all(0 < b - a <= 64 for a, b in pairwise(pieces))  # whole calls of 32 rows
    assert all(b > a for a, b in pairwise(made))
    outputs: list[Output] = []
    while one.num_unfinished:
        outputs += one.step()
    assert next(o for o in outputs if o.index == 1).token_ids == truth()[5]


def test_a_cancelled_request_is_gone_within_a_step():
    one = engine(3)
    for i in range(6):
        one.add(i, Request(PROMPTS[i], 200, ignore_eos=True))
    one.step()
    before = one.num_free_pages
    one.cancel(2)  # runs
    one.cancel(5)  # waits
    one.cancel(77)  # never was
    ended = {o.index: o for o in one.step()}
    assert {i: o.finish_reason for i, o in ended.items()} == {2: "abort", 5: "abort"}
    assert ended[2].token_ids == truth()[2][: len(ended[2].token_ids)]
    assert ended[5].token_ids == ()
    assert sorted(live.index for live in one.scheduler.by_arrival) == [0, 1, 3, 4]
    assert one.num_free_pages <= before + 2


def test_the_queue_is_bounded_and_says_so():
    sizes = replace(SMALL, num_speculative_tokens=0)
    one = engine_of(tiny_model(sizes), sizes, "ar.yaml")
    one.scheduler.max_waiting = 2
    for i in range(6):
        one.add(i, Request((5,), 2))
    with pytest.raises(CapacityError, match=r"0 requests run and 6 wait.*max_num_seqs=4, max_waiting=2"):
        one.add(6, Request((5,), 2))


def test_too_few_pages_for_one_request_are_refused():
    with pytest.raises(CapacityError, match="2 cache pages of 128 positions do not hold one request of max_model_len"):
        Scheduler(replace(SMALL, num_pages=2), 8, False)
    with pytest.raises(UsageError, match=r"num_pages is 2; a request of max_model_len=512 alone takes 4 pages of 128"):
        prepare(load_graph("mtp.yaml"), source="mtp.yaml", num_pages=2, max_model_len=512)


MOVES = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5), st.integers(1, 12)),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("fail"), st.just(0), st.just(0)),
    st.tuples(st.just("step"), st.just(0), st.integers(1, 3)),
)


@functools.cache
def shared_engine(k: int) -> Engine:
    """One engine for all examples: what one leaves behind, the next one finds."""
    return engine(k, num_pages=4, max_num_batched_tokens=96)


@pytest.mark.parametrize("k", [0, 3])
@settings(max_examples=25, deadline=None)
@given(moves=st.lists(MOVES, max_size=14))
def test_no_page_and_no_token_is_lost_whatever_comes(k, moves):
    """Random arrivals, limits, cancels, failing stages and, with four pages, preemptions."""
    one, added, outputs = shared_engine(k), {}, {}
    for what, a, b in [*moves, ("step", 0, 200)]:
        if what == "add":
            index = len(added)
            added[index] = (a, b)
            one.add(index, Request(PROMPTS[a], b, ignore_eos=True))
        elif what == "cancel":
            one.cancel(a)
        elif what == "fail" and one.scheduler.live:
            fail_next_call(one)
        elif what == "step":
            for _ in range(b):
                if one.num_unfinished:
                    outputs |= {o.index: o for o in one.step()}
    assert one.num_unfinished == 0
    assert all_free(one)
    assert (one.scheduler.table == -1).all()
    assert outputs.keys() == added.keys()
    for index, output in outputs.items():
        a, b = added[index]
        if output.finish_reason == "length":
            assert output.token_ids == truth()[a][:b]
        else:
            assert output.finish_reason in ("abort", "error")
            assert output.token_ids == truth()[a][: len(output.token_ids)]


def fail_next_call(one: Engine) -> None:
    """The target raises once."""
    target = one.runtime.model.target
    forward = target.forward

    def raises(self, rows):
        target.forward = forward
        raise RuntimeError("once")

    target.forward = MethodType(raises, target)
