"""The engine: requests in, tokens out, one plan per step.

Knows: admission, depth per request, reservation, finish reasons. Does not know: what a step computes.

The engine owns the journal: a request's prompt and committed tokens. All that a step is told, it derives from
the journal, so whatever runs the step can be rebuilt from it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftline.graph.core import Graph
from draftline.graph.errors import PlanError, nearest
from draftline.stages.models.core import Loaded

from .deployment import Compiler, depths, needs_mtp
from .inline import BoundPlan, InlineRuntime
from .pages import PagePool
from .request import Counts, FinishReason, Output, Request, check
from .slots import Slot, SlotTable

Listener = Callable[[int, Sequence[int]], None]
"""Called with a request's index and the tokens that a step added to it."""

DRIVER_INPUTS = ("tail", "position", "depth", "recent", "num_recent", "pages", "history")
PREFILL_INPUTS = ("tokens", "following", "positions", "slots", "pages")


@dataclass
class _Live:
    """A request in a slot, with its journal."""

    index: int
    request: Request
    slot: Slot
    tokens: list[int]
    prefilled: int = 0
    num_recent: int = 0
    counts: Counts = field(default_factory=Counts)
    began: float = 0.0
    prefill_seconds: float = 0.0


class Engine:
    """Runs requests over a graph and a model, in this process.

    ``step`` is one decode step over all live requests; ``generate`` runs a list of requests to their ends.
    """

    def __init__(self, graph: Graph, prefill: Graph, model: Loaded, compiler: Compiler) -> None:
        self.graph, self.model, self.sizes = graph, model, compiler.sizes
        self.k_max = self.sizes.k_max
        compiled = [compiler.plan(graph, k) for k in depths(self.k_max)]
        plans, self.cache_report = [plan for plan, _ in compiled], compiled[-1][1]
        self.runtime = InlineRuntime(model, compiler.lookup)
        bound = self.runtime.bind([*plans, compiler.plan(prefill, self.k_max)[0]])
        self._decode = {b.plan.num_speculative_tokens: b for b in bound[:-1]}
        self._prefill = bound[-1]
        for b, known in ((bound[0], DRIVER_INPUTS), (self._prefill, PREFILL_INPUTS)):
            for name in b.inputs:
                if name not in known:
                    raise PlanError(f"graph {b.plan.name!r}: the driver has no input {name!r}{nearest(name, known)}")
        self._mtp = needs_mtp(graph)
        self._slots = SlotTable(self.sizes.max_num_seqs)
        self._pages = PagePool(model.geometry.num_pages, self.sizes.page_size, self.sizes.max_num_seqs)
        self._table = np.full((self.sizes.max_num_seqs, self.sizes.pages_per_slot), -1, dtype=np.int64)
        self._waiting: deque[_Live] = deque()
        self._live: dict[int, _Live] = {}

    # -- requests ------------------------------------------------------------------------------------------

    def add(self, index: int, request: Request) -> None:
        """Queue a request under the caller's ``index``. Raises RequestError."""
        check(request, self.model.shape.vocab_size, self.sizes.max_model_len, f"prompt {index + 1}")
        self._waiting.append(_Live(index, request, Slot(-1, 0), list(request.prompt)))

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._live)

    @property
    def num_free_pages(self) -> int:
        return self._pages.num_free

    def generate(self, requests: Sequence[Request], listen: Listener | None = None) -> list[Output]:
        """Run all requests to their ends; outputs in the order of the requests.

        Raises RequestError for a bad one before any is queued.
        """
        for i, request in enumerate(requests):
            check(request, self.model.shape.vocab_size, self.sizes.max_model_len, f"prompt {i + 1}")
        for i, request in enumerate(requests):
            self.add(i, request)
        done: list[Output] = []
        while self.num_unfinished:
            done.extend(self.step(listen))
        return sorted(done, key=lambda output: output.index)

    # -- one step ------------------------------------------------------------------------------------------

    def step(self, listen: Listener | None = None) -> list[Output]:
        """Admit, schedule, run, post-process. Gives the requests that finished."""
        done = list(self._admit())
        if not self._live:
            return done
        bound, batch = self.prepare_step()
        out = {name: t.numpy() for name, t in self.runtime.run(bound).items()}
        return done + list(self._post_process(batch, out, listen))

    def prepare_step(self) -> tuple[BoundPlan, dict[int, int]]:
        """Depth per live slot, the plan that covers it with its metadata filled, pages reserved; nothing has run."""
        batch = {live.slot.index: self._depth(live) for live in self._live.values()}
        return self._schedule(batch), batch

    def journal(self, slot: int) -> tuple[int, ...]:
        """New tokens committed so far by the request in ``slot``."""
        live = self._live[slot]
        return tuple(live.tokens[len(live.request.prompt) :])

    def _depth(self, live: _Live) -> int:
        """K_eff: drafts that this request can still use, 0 … K (DESIGN §4.6)."""
        if self._mtp and not live.num_recent:
            return 0  # a prompt of one token: the drafter has no streams to start from yet
        k = live.request.num_speculative_tokens
        return max(0, min(self.k_max if k is None else min(k, self.k_max), self._wanted(live) - 1))

    def _wanted(self, live: _Live) -> int:
        """Tokens that the request may still get: its own limit, and the context's."""
        made = len(live.tokens) - len(live.request.prompt)
        return min(live.request.max_new_tokens - made, self.sizes.max_model_len - len(live.tokens))

    def _schedule(self, batch: dict[int, int]) -> BoundPlan:
        """Reserve pages for every window, pick the plan, and write the step's metadata."""
        depth = max(batch.values())
        bound = self._decode[min(k for k in self._decode if k >= depth)]
        bound.plan.covers(len(batch), depth)
        for array in bound.inputs.values():
            array.fill(-1)
        for live in self._live.values():
            n = live.slot.index
            self._reserve(n, len(live.tokens) + batch[n])
            values = {
                "tail": live.tokens[-1],
                "position": len(live.tokens) - 1,
                "depth": batch[n],
                "num_recent": live.num_recent,
            }
            for name, value in values.items():
                if name in bound.inputs:
                    bound.inputs[name][n] = value
            if live.num_recent and "recent" in bound.inputs:
                bound.inputs["recent"][n, : live.num_recent] = live.tokens[-live.num_recent :]
            if "history" in bound.inputs:
                bound.inputs["history"][n, : len(live.tokens)] = live.tokens
        if "num_recent" in bound.inputs:
            np.maximum(bound.inputs["num_recent"], 0, out=bound.inputs["num_recent"])
        bound.inputs["pages"][:] = self._table
        return bound

    def _reserve(self, slot: int, positions: int) -> None:
        pages = self._pages.reserve(slot, min(positions, self.sizes.max_model_len))
        self._table[slot, : len(pages)] = pages

    def _post_process(
        self, batch: dict[int, int], out: dict[str, np.ndarray], listen: Listener | None
    ) -> Iterator[Output]:
        proposed = out.get("proposed")
        for live in list(self._live.values()):
            n = live.slot.index
            new = [int(t) for t in out["tokens"][n, : out["count"][n]]]
            drafts = batch[n] if proposed is None else int(proposed[n])
            kept, reason = self._cut(live, new)
            live.tokens.extend(kept)
            live.num_recent = len(new)
            live.counts.add(drafts, min(int(out["accepted"][n]), len(kept)), len(kept))
            if listen is not None and kept:
                listen(live.index, kept)
            if reason is not None:
                yield self._finish(live, reason)

    def _cut(self, live: _Live, new: Sequence[int]) -> tuple[list[int], FinishReason | None]:
        """Keep what comes before a stop: nothing behind one is returned, counted or charged."""
        made = len(live.tokens) - len(live.request.prompt)
        for i, token in enumerate(new, 1):
            if token in self.model.shape.eos_token_ids and not live.request.ignore_eos:
                return list(new[:i]), "stop"
            if made + i == live.request.max_new_tokens:
                return list(new[:i]), "length"
            if len(live.tokens) + i == self.sizes.max_model_len:
                return list(new[:i]), "context"
        return list(new), None

    def _finish(self, live: _Live, reason: FinishReason) -> Output:
        if self._slots.holds(live.slot):
            self._live.pop(live.slot.index)
            self._pages.release(live.slot.index)
            self._table[live.slot.index] = -1
            self._slots.release(live.slot)
        seconds = time.perf_counter() - live.began - live.prefill_seconds
        k, asked = live.request.num_speculative_tokens, self.sizes.num_speculative_tokens
        return Output(
            index=live.index,
            prompt=live.request.prompt,
            token_ids=tuple(live.tokens[len(live.request.prompt) :]),
            finish_reason=reason,
            counts=live.counts,
            num_speculative_tokens=asked if k is None else min(k, asked),
            prefill_seconds=live.prefill_seconds,
            decode_seconds=seconds,
        )

    # -- admission and prefill -------------------------------------------------------------------------------

    def _admit(self) -> Iterator[Output]:
        """Give free slots to waiting requests and fill their caches; a full context ends at once."""
        admitted = []
        while self._waiting and self._slots.num_free:
            live = self._waiting.popleft()
            live.began = time.perf_counter()
            if self._wanted(live) <= 0:
                yield self._finish(live, "context")
                continue
            live.slot = self._slots.lease()
            self._live[live.slot.index] = live
            self._reserve(live.slot.index, len(live.tokens))
            admitted.append(live)
        began = time.perf_counter()
        for rows in self._prefill_calls(admitted):
            self._run_prefill(rows)
        for live in admitted:
            live.prefill_seconds = time.perf_counter() - began
            live.num_recent = 1 if self._mtp and len(live.tokens) > 1 else 0

    def _prefill_calls(self, admitted: Sequence[_Live]) -> Iterator[list[tuple[_Live, int]]]:
        """All prompt rows but the tails', in calls of P: rows of several prompts share a call."""
        rows = [(live, p) for live in admitted for p in range(len(live.tokens) - 1)]
        size = self.sizes.prefill_tile
        for start in range(0, len(rows), size):
            yield rows[start : start + size]

    def _run_prefill(self, rows: list[tuple[_Live, int]]) -> None:
        inputs = self._prefill.inputs
        for array in inputs.values():
            array.fill(-1)
        for i, (live, p) in enumerate(rows):
            inputs["tokens"][i], inputs["positions"][i] = live.tokens[p], p
            inputs["slots"][i] = live.slot.index
            if "following" in inputs:
                inputs["following"][i] = live.tokens[p + 1]
        inputs["pages"][:] = self._table
        self.runtime.run(self._prefill)
