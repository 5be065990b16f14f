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
from draftline.compiler.plan import Plan
from draftline.graph.core import Graph
from draftline.graph.errors import CapacityError, StageError, WorkerError, WorkerStartError

from .adaptive import Policy
from .catch_up import CatchUp
from .deployment import Compiler, depths
from .ends import NOTHING_LEFT, cut
from .fill import fill_calls, missed_calls
from .metadata import FILL, STEP, check_names, write_fill, write_step
from .observe import Observer
from .pages import PagePool
from .recovery import Recovery
from .request import NOWHERE, Delta, FinishReason, Listener, Live, Output, Request
from .running import Bound, Flow, Outputs, Runtime, call, drive
from .sampled import Sampled, read_logprobs
from .slots import SlotTable
from .text import Text


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
        policy: Policy | None = None,
        text: Text | None = None,
    ) -> None:
        """Compiles all plans and starts the runtime. ``max_waiting``: requests that may wait for a slot. ``policy``:
        chooses K for every step; without one each step is as deep as its requests can use. ``text``: the tokenizer, for
        requests with stop strings."""
        self.graph, self.sizes, self.shape = graph, compiler.sizes, compiler.shape
        self.k_max, self.max_waiting = self.sizes.k_max, max_waiting
        compiled = [compiler.plan(graph, k) for k in depths(self.k_max, every=policy is not None)]
        plans, self.cache_report = [plan for plan, _ in compiled], compiled[-1][1]
        prefill = follow(prefill, graph, compiler.lookup, "cpu:0")
        fills = [compiler.plan(prefill, self.k_max, rows=rows)[0] for rows in (None, self.sizes.tile)]
        self.runtime, self.observer, self.policy = runtime, observer or Observer(), policy
        bound = runtime.bind([*plans, *fills])
        self._decode = {b.plan.num_speculative_tokens: b for b in bound[:-2]}
        self._prefill, self._replay = bound[-2:]
        for b, known in ((bound[0], STEP), (self._prefill, FILL)):
            check_names(b.inputs, known, b.plan.name)
        self._sampled = Sampled.of(plans[0], self.shape, text)
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
        self.check(request, f"prompt {index + 1}")
        if not self.num_free:
            raise CapacityError(
                f"{len(self._live)} requests run and {len(self._waiting)} wait, which is all that this engine takes"
                f" (max_num_seqs={self.sizes.max_num_seqs}, max_waiting={self.max_waiting}); try again later"
            )
        live = Live(index, request, list(request.prompt), queued=time.perf_counter())
        self._sampled.admit(live)
        self._waiting.append(live)

    def check(self, request: Request, where: str) -> None:
        """Raises RequestError naming what is wrong with the request ``where``, or what this graph cannot do."""
        self._sampled.check(request, where)

    def cancel(self, index: int) -> None:
        """End the caller's request ``index`` with what it has: at once if it waits, else before the next step. One that
        is not here is nobody's fault: it may have just ended."""
        for live in self._waiting:
            if live.index == index:
                self._waiting.remove(live)
                self._finish(live, "abort")
                return
        for live in self._live.values():
            live.cancelled = live.cancelled or live.index == index

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
        self._drop_cancelled()
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

    def _drop_cancelled(self) -> None:
        for live in [live for live in self._live.values() if live.cancelled]:
            self._finish(live, "abort")

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
        self._post_process(batch, bound.plan, depth, {name: t.numpy() for name, t in out.items()}, listen)
        self._recovery.succeeded(batch, list(self._live.values()))
        self.observer.stepped(self.runtime, bound.plan, began, batch)

    def prepare_step(self, batch: Sequence[Live] | None = None) -> tuple[Bound, dict[int, int]]:
        """Depth per slot of the batch, the plan that covers it with its metadata filled, pages reserved; nothing has
        run."""
        batch = list(self._live.values()) if batch is None else batch
        depth = {live.slot.index: self._depth(live) for live in batch}
        k = max(depth.values())
        if self.policy is not None:
            # Rows that no drafter has seen wait in M places; before those are all taken, some step must draft.
            full = any(depth[live.slot.index] and live.num_recent > self.k_max for live in batch)
            k = self.policy.choose([(live.evidence, depth[live.slot.index]) for live in batch], least=int(full))
            depth = {n: min(d, k) for n, d in depth.items()}
        return self._schedule(batch, depth, k), depth

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

    def _schedule(self, batch: Sequence[Live], depth: dict[int, int], k: int) -> Bound:
        """Reserve pages for every window, pick the plan, and write the step's metadata."""
        bound = self._decode[min(known for known in self._decode if known >= k)]
        bound.plan.covers(len(batch), k)
        for live in batch:
            self._reserve(live.slot.index, len(live.tokens) + depth[live.slot.index])
        write_step(bound.inputs, batch, depth, self._table, self._sampled.everyone)
        return bound

    def _reserve(self, slot: int, positions: int) -> None:
        pages = self._pages.reserve(slot, min(positions, self.sizes.max_model_len))
        self._table[slot, : len(pages)] = pages

    def _post_process(
        self,
        batch: Sequence[Live],
        plan: Plan,
        depth: dict[int, int],
        out: dict[str, np.ndarray],
        listen: Listener | None,
    ) -> None:
        proposed, drafting = out.get("proposed"), plan.num_speculative_tokens > 0
        for live in batch:
            n = live.slot.index
            new = [int(t) for t in out["tokens"][n, : out["count"][n]]]
            drafts = depth[n] if proposed is None else int(proposed[n])
            kept, reason = cut(live, new, self.shape.eos_token_ids, self.sizes.max_model_len)
            self._catch_up.stepped(live, depth[n] if drafting else None, len(new))
            logprobs = read_logprobs(live, out, kept)
            live.tokens.extend(kept)
            live.logprobs.extend(logprobs)
            live.drafts, live.accepted = drafts, int(out["accepted"][n])
            if self.policy is not None:
                self.policy.observe(live.evidence, depth[n], live.accepted)
            live.counts.add(drafts, min(live.accepted, len(kept)), len(kept))
            if listen is not None and kept:
                listen(Delta(live.index, tuple(kept), logprobs))
            if reason is not None:
                self._finish(live, reason, NOTHING_LEFT if reason == "error" else None)

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
            if self.policy is not None:
                live.evidence = self.policy.new()
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
        write_fill(bound.inputs, rows, self._table, target)
        out = yield from call(self.runtime.start(bound))
        self.observer.filled(self.runtime, bound.plan, began, rows)
        return out
