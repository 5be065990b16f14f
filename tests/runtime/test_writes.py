"""Pad rows, finished requests and dummy drafts write nothing that is live; nothing past the limit is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from engines import SIZES, engine_of, tiny_model
from writeset import Watch

from draftline.runtime.engine import Engine
from draftline.runtime.request import Request
from draftline.stages.caches.core import ring_length


@dataclass(frozen=True)
class Cache:
    """A watched tensor: a ring of ``size`` rows per slot, or pages of ``size`` entries of ``ratio`` positions."""

    tensor: torch.Tensor
    size: int
    ratio: int = 0
    drafter: bool = False


def watched(engine: Engine) -> list[Cache]:
    """Every cache tensor of target and drafter."""
    target, g, out = engine.runtime.model.target, engine.sizes.geometry(), []
    window = ring_length(target.config.sliding_window, g)
    for layer, ratio in zip(target.caches, target.config.compress_ratios, strict=True):
        out.append(Cache(layer.window, window))
        if ratio:
            state = ring_length(ratio * target.config.state_width(ratio), g)
            out += [Cache(layer.state, state), Cache(layer.entries, g.page_size // ratio, ratio)]
        if layer.index_keys is not None:
            out += [Cache(layer.index_state, state), Cache(layer.index_keys, g.page_size // ratio, ratio)]
    return [*out, Cache(engine.runtime.model.drafter.cache.window, window, drafter=True)]


def allowed(cache: Cache, slot: int, pages: list[int], position: int, depth: int, recent: int) -> set[int]:
    """Rows that a step of this request may write: window rows position … position + depth; the drafter's rows run
    from the oldest one it catches up with to the one before its last draft."""
    rows = range(position, position + depth + 1)
    if cache.drafter:
        rows = range(position - recent, max(position, position + depth - 1))
    if not cache.ratio:
        return {slot * cache.size + p % cache.size for p in rows}
    closed = [(p + 1) // cache.ratio - 1 for p in rows if (p + 1) % cache.ratio == 0]
    return {pages[entry // cache.size] * cache.size + entry % cache.size for entry in closed}


@pytest.mark.parametrize(
    ("k", "layouts"),
    [(0, "bxs"), (1, "bxs"), (3, "bxs"), (7, "bxs"), (9, "bxs"), (2, "packed"), (4, "packed"), (9, "packed")],
)
def test_every_step_writes_exactly_its_own_rows(k, layouts):
    sizes = replace(SIZES, num_speculative_tokens=k, max_num_seqs=4, max_model_len=160, layouts=layouts)
    engine = engine_of(tiny_model(sizes), sizes)
    caches = watched(engine)
    for i, n in enumerate([3, 125, 150, 158]):  # the last two finish early, at the context limit
        engine.add(i, Request(tuple(range(2, 2 + n)), 30, ignore_eos=True))
    engine.step()
    checked = 0
    while engine.num_unfinished:
        bound, batch = engine.prepare_step()  # reserves pages; doing it twice changes nothing
        at = {n: (int(bound.inputs["position"][n]), int(bound.inputs["num_recent"][n])) for n in batch} if k else {}
        at = at or {n: (int(bound.inputs["position"][n]), 0) for n in batch}
        pages = {n: bound.inputs["pages"][n].tolist() for n in batch}
        with Watch([c.tensor for c in caches]) as written:
            engine.step()
        for which, cache in enumerate(caches):
            mine: set[int] = set()
            for n, depth in batch.items():
                position, recent = at[n]
                assert position + depth < sizes.max_model_len
                mine |= allowed(cache, n, pages[n], position, depth, recent)
            if cache.drafter and not k:
                mine = set()
            assert written.live(which) <= mine
            if not cache.drafter and not cache.ratio:
                tails = {n * cache.size + at[n][0] % cache.size for n in batch}
                assert tails <= written.live(which)
        checked += 1
    assert checked >= 4


def test_the_checker_sees_a_stray_write():
    cache = torch.zeros(6, 2)
    with Watch([cache]) as written:
        cache.index_copy_(0, torch.tensor([3, 5]), torch.ones(2, 2))
    assert written.live(0) == {3}
    with pytest.raises(AssertionError, match="unexpected write by fill_"), Watch([cache]):
        cache.fill_(1.0)
    with Watch([cache]) as written:
        cache.index_copy_(0, torch.tensor([4]), torch.ones(1, 2))
    with pytest.raises(AssertionError, match="zero row"):
        written.live(0)
