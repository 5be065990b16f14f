"""The engine: requests in, tokens out, one plan per step.

Knows: admission, depth per request, reservation, finish reasons. Does not know: what a step computes, where it runs,
how a failure is dealt with (``recovery.py``).

The engine owns the journal: a request's prompt and committed tokens. All that a step is told, it derives from
the journal, so whatever runs the step can be rebuilt from it.
"""

from __future__ import annotations

import time
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
from .filling import Filling
from .metadata import FILL, STEP, check_names
from .observe import Observer
from .recovery import Recovery
from .request import Delta, FinishReason, Listener, Live, Output, Request
from .running import Bound, Flow, Runtime, call, drive
from .sampled import Sampled, read_logprobs
from .scheduler import Scheduler
from .stepping import Step, Stepping
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
        self.k_max = self.sizes.k_max
        compiled = [compiler.plan(graph, k) for k in depths(self.k_max, every=policy is not None)]
        plans, self.cache_report = [plan for plan, _ in compiled], compiled[-1][1]
        prefill = follow(prefill, graph, compiler.lookup, "cpu:0")
        fills = [compiler.plan(prefill, self.k_max, rows=rows)[0] for rows in (None, self.sizes.tile)]
        self.runtime, self.observer, self.policy = runtime, observer or Observer(), policy
        self.overlaps = runtime.overlaps and self.sizes.async_scheduling
        bound = runtime.bind([*plans, *fills])
        for b, known in ((bound[0], STEP), (bound[-1], FILL)):
            check_names(b.inputs, known, b.plan.name)
        self._sampled = Sampled.of(plans[0], self.shape, text)
        self._catch_up = CatchUp.of(graph, compiler.lookup, self.k_max + 1)
        shares = self.sizes.prefix_caching and (not self.sizes.snapshots or "restore" in bound[-1].inputs)
        self.scheduler = Scheduler(self.sizes, max_waiting, shares)
        self._filling = Filling(runtime, bound[-2], bound[-1], self.scheduler, self._catch_up, self.observer)
        decode = {b.plan.num_speculative_tokens: b for b in bound[:-2]}
        self.stepping = Stepping(decode, self.scheduler, self._catch_up, policy, self._sampled.everyone)
        self._ahead: Step | None = None
        self._done: list[Output] = []
        self._recovery = Recovery()

    # -- requests ------------------------------------------------------------------------------------------

    def add(self, index: int, request: Request) -> None:
        """Queue a request under the caller's ``index``. Raises RequestError, and CapacityError if too many wait."""
        self.check(request, f"prompt {index + 1}")
        s = self.scheduler
        if not s.num_free:
            raise CapacityError(
                f"{len(s.live)} requests run and {len(s.waiting)} wait, which is all that this engine takes"
                f" (max_num_seqs={self.sizes.max_num_seqs}, max_waiting={s.max_waiting}); try again later"
            )
        live = Live(index, request, list(request.prompt), queued=time.perf_counter())
        self._sampled.admit(live)
        if self.stepping.wanted(live) > 0:
            s.enqueue(live)
        else:
            self._begin(live)
            self._finish(live, "context")

    def check(self, request: Request, where: str) -> None:
        """Raises RequestError naming what is wrong with the request ``where``, or what this graph cannot do."""
        self._sampled.check(request, where)

    def cancel(self, index: int) -> None:
        """End the caller's request ``index`` with what it has: at once if it waits, else before the next step. One that
        is not here is nobody's fault: it may have just ended."""
        for live in self.scheduler.waiting:
            if live.index == index:
                self.scheduler.waiting.remove(live)
                self._finish(live, "abort")
                return
        for live in self.scheduler.live.values():
            live.cancelled = live.cancelled or live.index == index

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run, those whose outputs nobody has fetched, and a step that nobody needs any more."""
        s = self.scheduler
        return len(s.waiting) + len(s.live) + len(self._done) + (self._ahead is not None and not s.live)

    @property
    def num_free(self) -> int:
        """Requests that ``add`` would take now."""
        return self.scheduler.num_free

    @property
    def num_free_pages(self) -> int:
        return self.scheduler.pages.num_free

    def withdraw(self) -> list[Live]:
        """Take all unfinished requests out, with their journals: their workers are down for good."""
        self._ahead = None
        return self.scheduler.withdraw()

    def fail(self, live: Live, error: str) -> None:
        """End a request for good, with what was committed so far."""
        self._finish(live, "error", error)

    def drain(self) -> list[Output]:
        """The requests that ended since the last call."""
        done, self._done = self._done, []
        return done

    def adopt(self, live: Live) -> None:
        """Go on with a request that another engine could not finish: its journal is all that is needed."""
        self.scheduler.enqueue(live)

    def close(self) -> None:
        """End the runtime. Requests that are not done stay in the journal and go nowhere."""
        self.runtime.close()

    # -- one step ------------------------------------------------------------------------------------------

    def step(self, listen: Listener | None = None) -> list[Output]:
        """Admit, fill caches, schedule, run, post-process. Gives the requests that finished."""
        try:
            return drive(self.flow(listen))
        except BaseException:
            self._ahead = None
            self.runtime.abandon()
            raise

    def flow(self, listen: Listener | None = None) -> Flow[list[Output]]:
        """``step``, yielding every call that it waits for. A failure ends the step early: the next one goes on from
        the journal. Raises WorkerLostError once the workers are down for good."""
        for live in [live for live in self.scheduler.live.values() if live.cancelled]:
            self._finish(live, "abort")
        if self._ahead is None:
            self.admit()
        batch = self._recovery.batch(self.scheduler.by_arrival)
        try:
            step = self._ahead or (yield from self._begin_step(batch))
            if step is not None:
                yield from self._finish_step(step, listen)
                self._recovery.succeeded(batch, self.scheduler.by_arrival)
        except (StageError, WorkerError) as error:
            self._ahead = None
            self.observer.failed(error)
            # First of all, so that whoever gives the flow up meanwhile leaves nobody who counts on lost caches.
            for live in self._recovery.failed(error, batch, self.scheduler.by_arrival):
                self.fail(live, str(error))
            if isinstance(error, WorkerError):
                self.scheduler.lost()
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

    def _begin_step(self, batch: Sequence[Live]) -> Flow[Step | None]:
        """Fill caches, reserve the windows, and begin a decode step of those who are ready for one."""
        yield from self._filling.fill(batch, self._fill_budget(batch))
        ready = self.scheduler.reserve([live for live in batch if live.cached], self.stepping.window)
        if not ready:
            return None
        yield from self._filling.fill_missed([live for live in ready if self.stepping.depth(live)])
        began = time.monotonic_ns()
        bound, depth = self.stepping.prepare(ready)
        return self._step(bound, ready, depth, began, follows=False)

    def _step(self, bound: Bound, ready: Sequence[Live], caps: dict[int, int], began: int, follows: bool) -> Step:
        batch = tuple((live, live.slot) for live in ready)
        return Step(bound, batch, caps, began, self.runtime.start(bound, follows))

    def _finish_step(self, step: Step, listen: Listener | None) -> Flow[None]:
        """Wait for a step. Meanwhile the next one is prepared; it begins before this one's results are looked at."""
        following = None
        if self.overlaps and not self.observer.traces:
            following = self.stepping.prepare_ahead(step)
        out = yield from call(step.pending)
        self._ahead, results = None, {name: t.numpy() for name, t in out.items()}
        holders, depth = step.holders, self.stepping.drafts(step)
        if following is not None:
            results = {name: array.copy() for name, array in results.items()}
            self._ahead = self._step(following[0], holders, following[1], time.monotonic_ns(), follows=True)
        self._post_process(holders, step.bound.plan, depth, results, listen)
        self.observer.stepped(self.runtime, step.bound.plan, step.began, holders)

    def admit(self) -> None:
        """Let those who wait begin, as far as slots and pages go."""
        for live in self.scheduler.admit(self.k_max):
            self._begin(live)

    def prepare_step(self) -> tuple[Bound, dict[int, int]]:
        """The next step of all that run, with pages reserved, and the depth of each slot; nothing has run."""
        return self.stepping.prepare(self.scheduler.reserve(self.scheduler.by_arrival, self.stepping.window))

    def journal(self, slot: int) -> tuple[int, ...]:
        """New tokens committed so far by the request in ``slot``."""
        return tuple(self.scheduler.live[slot].new_tokens)

    def _fill_budget(self, batch: Sequence[Live]) -> int:
        """Rows that may be filled in this step beside the windows of those that decode: never so few that whoever is
        filled must wait for others to end."""
        decoding = sum(1 + self.stepping.depth(live) for live in batch if live.cached)
        return max(self.sizes.max_num_batched_tokens - decoding, self.sizes.prefill_tile)

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
        self.scheduler.release(live)
        output = live.output(reason, self.sizes.num_speculative_tokens, error)
        self.observer.finished(output, live)
        self._done.append(output)

    def _begin(self, live: Live) -> None:
        """A request has its turn. One that was preempted has had its first one before."""
        if live.began:
            return
        live.began, live.began_ns = time.perf_counter(), time.monotonic_ns()
        if self.policy is not None:
            live.evidence = self.policy.new()
        self.observer.admitted(live)
