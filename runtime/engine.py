"""The engine: requests in, tokens out, one plan per step.

Knows: admission, depth per request, reservation, finish reasons. Does not know: what a step computes, where it runs,
how a failure is dealt with (``recovery.py``).

The engine owns the journal: a request's prompt and committed tokens. All that a step is told, it derives from
the journal, so whatever runs the step can be rebuilt from it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from draftline.compiler.passes.place import follow
from draftline.graph.core import Graph
from draftline.graph.errors import CapacityError, PlanError, StageError, WorkerError, WorkerStartError, nearest

from .catch_up import CatchUp
from .deployment import Compiler, depths
from .fill import fill_calls, missed_calls, write_rows
from .observe import Observer
from .pages import PagePool
from .recovery import Recovery
from .request import NOWHERE, FinishReason, Listener, Live, Output, Request, check
from .running import Bound, Flow, Outputs, Runtime, call, drive
from .slots import SlotTable

DRIVER_INPUTS = ("tail", "position", "depth", "recent", "num_recent", "pages", "history")
PREFILL_INPUTS = ("tokens", "following", "positions", "slots", "draft_slots", "pages")


class Engine:
    """Runs requests over a graph, on a runtime.

    ``step`` is one decode step over all live requests. ``flow`` is a step as a generator, for who runs several engines
    (``replicas.py``, which also runs a list of requests to their ends).
    """

    def __init__(
        self,
        graph: Graph,
        prefill: Graph,
        compiler: Compiler,
        runtime: Runtime,
        max_waiting: int = 1024,
        observer: Observer | None = None,
    ) -> None:
        """Compiles all plans and starts the runtime. ``max_waiting``: requests that may wait for a slot."""
        self.graph, self.sizes, self.shape = graph, compiler.sizes, compiler.shape
        self.k_max, self.max_waiting = self.sizes.k_max, max_waiting
        compiled = [compiler.plan(graph, k) for k in depths(self.k_max)]
        plans, self.cache_report = [plan for plan, _ in compiled], compiled[-1][1]
        prefill = follow(prefill, graph, compiler.lookup, "cpu:0")
        fills = [compiler.plan(prefill, self.k_max, rows=rows)[0] for rows in (None, self.sizes.tile)]
        self.runtime, self.observer = runtime, observer or Observer()
        bound = runtime.bind([*plans, *fills])
        self._decode = {b.plan.num_speculative_tokens: b for b in bound[:-2]}
        self._prefill, self._replay = bound[-2:]
        for b, known in ((bound[0], DRIVER_INPUTS), (self._prefill, PREFILL_INPUTS)):
            for name in b.inputs:
                if name not in known:
                    raise PlanError(f"graph {b.plan.name!r}: the driver has no input {name!r}{nearest(name, known)}")
        self._catch_up = CatchUp.of(graph, compiler.lookup, self.k_max + 1)
        self._slots = SlotTable(self.sizes.max_num_seqs)
        geometry = self.sizes.geometry()
        self._pages = PagePool(geometry.num_pages, self.sizes.page_size, self.sizes.max_num_seqs)
        self._table = np.full((self.sizes.max_num_seqs, self.sizes.pages_per_slot), -1, dtype=np.int64)
        self._waiting: deque[Live] = deque()
        self._live: dict[int, Live] = {}
        self._done: list[Output] = []
        self._recovery = Recovery()

    # -- requests ------------------------------------------------------------------------------------------

    def add(self, index: int, request: Request) -> None:
        """Queue a request under the caller's ``index``. Raises RequestError, and CapacityError if too many wait."""
        check(request, self.shape.vocab_size, self.sizes.max_model_len, f"prompt {index + 1}")
        if not self.num_free:
            raise CapacityError(
                f"{len(self._live)} requests run and {len(self._waiting)} wait, which is all that this engine takes"
                f" (max_num_seqs={self.sizes.max_num_seqs}, max_waiting={self.max_waiting}); try again later"
            )
        self._waiting.append(Live(index, request, list(request.prompt), queued=time.perf_counter()))

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._live)

    @property
    def num_free(self) -> int:
        """Requests that ``add`` would take now."""
        return self._slots.num_free + self.max_waiting - len(self._waiting)

    @property
    def num_free_pages(self) -> int:
        return self._pages.num_free

    def withdraw(self) -> list[Live]:
        """Take all unfinished requests out, with their journals: their workers are down for good."""
        lives = [*self._live.values(), *self._waiting]
        self._waiting.clear()
        for live in lives:
            self._release(live)
            live.slot, live.cached = NOWHERE, False
        return lives

    def fail(self, live: Live, error: str) -> None:
        """End a request for good, with what was committed so far."""
        self._finish(live, "error", error)

    def drain(self) -> list[Output]:
        """The requests that ended since the last call."""
        done, self._done = self._done, []
        return done

    def adopt(self, live: Live) -> None:
        """Go on with a request that another engine could not finish: its journal is all that is needed."""
        self._waiting.append(live)

    def close(self) -> None:
        """End the runtime. Requests that are not done stay in the journal and go nowhere."""
        self.runtime.close()

    # -- one step ------------------------------------------------------------------------------------------

    def step(self, listen: Listener | None = None) -> list[Output]:
        """Admit, fill caches, schedule, run, post-process. Gives the requests that finished."""
        try:
            return drive(self.flow(listen))
        except BaseException:
            self.runtime.abandon()
            raise

    def flow(self, listen: Listener | None = None) -> Flow[list[Output]]:
        """``step``, yielding every call that it waits for. A failure ends the step early: the next one goes on from
        the journal. Raises WorkerLostError once the workers are down for good."""
        self._admit()
        batch = self._recovery.batch(list(self._live.values()))
        if batch:
            try:
                yield from self._fill(batch)
                yield from self._fill_missed(batch)
                yield from self._decode_step(batch, listen)
            except (StageError, WorkerError) as error:
                self.observer.failed(error)
                # First of all, so that whoever gives the flow up meanwhile leaves nobody who counts on lost caches.
                for live in self._recovery.failed(error, batch, list(self._live.values())):
                    self.fail(live, str(error))
                if isinstance(error, WorkerError):
                    yield from self._restart()
        return self.drain()

    def _restart(self) -> Flow[None]:
        """Until the workers run again. Workers that cannot be started count as a failure like any other."""
        while True:
            try:
                yield from call(self.runtime.restart())
                return
            except WorkerStartError as error:
                self.observer.failed(error)

    def _decode_step(self, batch: Sequence[Live], listen: Listener | None) -> Flow[None]:
        began = time.monotonic_ns()
        bound, depth = self.prepare_step(batch)
        out = yield from call(self.runtime.start(bound))
        self._post_process(batch, depth, {name: t.numpy() for name, t in out.items()}, listen)
        self._recovery.succeeded(batch, list(self._live.values()))
        self.observer.stepped(self.runtime, bound.plan, began, batch)

    def prepare_step(self, batch: Sequence[Live] | None = None) -> tuple[Bound, dict[int, int]]:
        """Depth per slot of the batch, the plan that covers it with its metadata filled, pages reserved; nothing has
        run."""
        batch = list(self._live.values()) if batch is None else batch
        depth = {live.slot.index: self._depth(live) for live in batch}
        return self._schedule(batch, depth), depth

    def journal(self, slot: int) -> tuple[int, ...]:
        """New tokens committed so far by the request in ``slot``."""
        return tuple(self._live[slot].new_tokens)

    def _depth(self, live: Live) -> int:
        """K_eff: drafts that this request can still use, 0 … K (DESIGN §4.6)."""
        if not self._catch_up.can_draft(live):
            return 0
        k = live.request.num_speculative_tokens
        return max(0, min(self.k_max if k is None else min(k, self.k_max), self._wanted(live) - 1))

    def _wanted(self, live: Live) -> int:
        """Tokens that the request may still get: its own limit, and the context's."""
        return min(live.request.max_new_tokens - live.made, self.sizes.max_model_len - len(live.tokens))

    def _schedule(self, batch: Sequence[Live], depth: dict[int, int]) -> Bound:
        """Reserve pages for every window, pick the plan, and write the step's metadata."""
        deepest = max(depth.values())
        bound = self._decode[min(k for k in self._decode if k >= deepest)]
        bound.plan.covers(len(batch), deepest)
        for array in bound.inputs.values():
            array.fill(-1)
        for live in batch:
            n = live.slot.index
            self._reserve(n, len(live.tokens) + depth[n])
            recent = min(live.num_recent, self.k_max + 1)
            values = {"tail": live.tokens[-1], "position": len(live.tokens) - 1, "depth": depth[n]}
            for name, value in {**values, "num_recent": recent}.items():
                if name in bound.inputs:
                    bound.inputs[name][n] = value
            if recent and "recent" in bound.inputs:
                bound.inputs["recent"][n, :recent] = live.tokens[-recent:]
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
        self, batch: Sequence[Live], depth: dict[int, int], out: dict[str, np.ndarray], listen: Listener | None
    ) -> None:
        proposed, drafting = out.get("proposed"), max(depth.values()) > 0
        for live in batch:
            n = live.slot.index
            new = [int(t) for t in out["tokens"][n, : out["count"][n]]]
            drafts = depth[n] if proposed is None else int(proposed[n])
            kept, reason = self._cut(live, new)
            self._catch_up.stepped(live, depth[n] if drafting else None, len(new))
            live.tokens.extend(kept)
            live.drafts, live.accepted = drafts, int(out["accepted"][n])
            live.counts.add(drafts, min(live.accepted, len(kept)), len(kept))
            if listen is not None and kept:
                listen(live.index, kept)
            if reason is not None:
                self._finish(live, reason)

    def _cut(self, live: Live, new: Sequence[int]) -> tuple[list[int], FinishReason | None]:
        """Keep what comes before a stop: nothing behind one is returned, counted or charged."""
        for i, token in enumerate(new, 1):
            if token in self.shape.eos_token_ids and not live.request.ignore_eos:
                return list(new[:i]), "stop"
            if live.made + i == live.request.max_new_tokens:
                return list(new[:i]), "length"
            if len(live.tokens) + i == self.sizes.max_model_len:
                return list(new[:i]), "context"
        return list(new), None

    def _finish(self, live: Live, reason: FinishReason, error: str | None = None) -> None:
        self._release(live)
        output = live.output(reason, self.sizes.num_speculative_tokens, error)
        self.observer.finished(output, live)
        self._done.append(output)

    def _release(self, live: Live) -> None:
        if live.slot.index >= 0 and self._slots.holds(live.slot):
            self._live.pop(live.slot.index)
            self._pages.release(live.slot.index)
            self._table[live.slot.index] = -1
            self._slots.release(live.slot)

    # -- admission and caches --------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give free slots to waiting requests; a full context ends at once."""
        while self._waiting and self._slots.num_free:
            live = self._waiting.popleft()
            live.began, live.began_ns = time.perf_counter(), time.monotonic_ns()
            self.observer.admitted(live)
            if self._wanted(live) <= 0:
                self._finish(live, "context")
                continue
            live.slot = self._slots.lease()
            self._live[live.slot.index] = live
            self._reserve(live.slot.index, len(live.tokens))

    def _fill(self, batch: Sequence[Live]) -> Flow[None]:
        """Bring the caches of those who need it up to the tail: a new prompt, or all that a lost worker knew."""
        todo = [live for live in batch if not live.cached]
        if not todo:
            return
        began = time.perf_counter()
        for replay, rows in fill_calls(todo, self.sizes.prefill_tile, self.sizes.tile):
            bound = self._replay if replay else self._prefill
            yield from self._run_fill(bound, rows)
        for live in todo:
            live.prefill_seconds += time.perf_counter() - began
            self._catch_up.filled(live)
            live.cached = True

    def _fill_missed(self, batch: Sequence[Live]) -> Flow[None]:
        """Give the drafter what it missed in steps without drafts, for those who will draft now."""
        todo = [live for live in batch if self._catch_up.behind(live) and self._depth(live)]
        own = self._catch_up.own_model
        for rows in missed_calls(todo, self.sizes.prefill_tile if own else self.sizes.tile):
            yield from self._run_fill(self._prefill if own else self._replay, rows, target=not own)
        for live in todo:
            self._catch_up.filled(live)

    def _run_fill(self, bound: Bound, rows: Sequence[tuple[Live, int]], target: bool = True) -> Flow[Outputs]:
        """One call of rows (request, position); without ``target``, they are the draft model's alone."""
        began = time.monotonic_ns()
        write_rows(bound.inputs, rows, target)
        bound.inputs["pages"][:] = self._table
        out = yield from call(self.runtime.start(bound))
        self.observer.filled(self.runtime, bound.plan, began, rows)
        return out
