"""The zmq runtime: a group of worker processes that share one arena and run the plans of one deployment.

Knows: what was sent, what came back, who is late, who is dead. Does not know: requests, tokens, what a stage computes.
The engine's journal is the truth; whatever is lost here can be rebuilt from it.

States: down → starting → idle ⇄ running → aborting → idle; any → failed (a worker died or is late), then down.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from draftline.compiler.frames import Carried, carried, travelling
from draftline.compiler.plan import Plan
from draftline.graph.errors import (
    CapacityError,
    DraftlineError,
    PlanError,
    StageError,
    TransportError,
    WorkerError,
    WorkerLostError,
)

from .. import ahead
from ..arena import arena_layout
from ..running import Outputs, Pending, Totals
from ..trace import Spans
from . import blame, frames, shared
from . import messages as m
from .launch import Crew, Launch
from .pending import Call, Starting
from .process import Child
from .remote import RemotePlan, Turn
from .roster import Roster
from .watch import Watch

LOOK = 0.25
"""Seconds between two looks at who is late, while nothing comes."""


class WorkerGroup:
    """See the module's docstring. ``close`` it, or use it as a context; at exit it is closed in any case."""

    def __init__(self, launch: Launch) -> None:
        """Raises TransportError for an endpoint that is refused. Nothing is started before ``bind``."""
        self._launch, self.limits = launch, launch.limits
        self._roster = Roster(launch)
        self._totals = Totals()
        self.epoch, self.step, self._failures = 0, 0, 0
        self.overlaps = launch.shares_memory
        self._turn, self._number = Turn(), 0
        self._state = "down"
        self._answer: Outputs | DraftlineError | None = None
        self._waiting_for: set[int] = set()
        self._earlier = np.zeros(shared.CELLS, dtype=np.int64)

    # -- start -----------------------------------------------------------------------------------------------

    def bind(self, plans: Sequence[Plan]) -> list[RemotePlan]:
        """Start one worker per device of the plans and wait until all are ready.

        Raises WorkerStartError naming who is not, PlanError for a device that no worker can own.
        """
        if self._state != "down" or self.epoch:
            raise PlanError("a group of workers is bound once")
        self._plans, self._crew = list(plans), Crew.of(plans, self._launch)
        self.devices = list(self._crew.devices)
        layout = arena_layout(plans)
        shares = self._launch.shares_memory
        bank = ahead.bank_bytes(plans) if shares else 0
        size = shared.MemoryLayout(len(self.devices), layout.nbytes if shares else 0, self._launch.trace, bank)
        self._memory_fd = shared.create(size.nbytes)
        self._free = weakref.finalize(self, os.close, self._memory_fd)
        self._memory = shared.Shared(self._memory_fd, size)
        self._watch = Watch(self._plans, self.devices, self._memory.cells)
        self._rings = [self._memory.spans(n) for n in range(len(self.devices))]
        arena = self._memory.arena() if shares else torch.zeros(layout.nbytes, dtype=torch.uint8)
        states = frozenset[str]() if shares else travelling(plans)
        self._carried = [Carried((), (), ()) if shares else carried(plan, states) for plan in plans]
        banks = self._memory.banks() if shares else None
        self.bound = [RemotePlan(plan, n, arena, layout, banks, self._turn) for n, plan in enumerate(plans)]
        starting = Starting(self, time.monotonic())
        try:
            starting.wait()
            starting.result()
        except BaseException:
            self.close()
            raise
        return self.bound

    def restart(self) -> Pending:
        """End what is left of the workers and start all anew. Raises WorkerLostError after too many in a row."""
        if self._state == "closed":
            raise WorkerLostError("the runtime is closed")
        error = self._answer
        self._state = "down"
        self._roster.kill(self.epoch)
        self._failures += 1
        if self._failures > self.limits.max_restarts:
            raise WorkerLostError(f"the workers failed {self._failures} times in a row; the last time: {error}")
        self._totals.restarts += 1
        wait = min(self.limits.backoff * 2 ** (self._failures - 1), self.limits.max_backoff)
        return Starting(self, time.monotonic() + wait)

    def spawn(self) -> None:
        """Start all processes; they are ready later. For ``Starting``."""
        self._earlier += self._memory.cells.sum(0)
        self.epoch += 1
        self._memory.clear()
        self._state, self._answer = "starting", None
        self._waiting_for = set(range(len(self.devices)))
        self._where = [""] * len(self.devices)
        self._began = time.monotonic()
        self._roster.start(self._crew, self.epoch, self._memory_fd)

    # -- calls -----------------------------------------------------------------------------------------------

    def start(self, bound: RemotePlan, follows: bool = False) -> Pending:
        """Send one step to the entry's worker. Raises CapacityError while another call is under way."""
        if self._state in ("running", "aborting", "starting"):
            raise CapacityError("the workers run one step at a time, and one is under way")
        after = self._number + 1 if follows else 0
        self._current, self._number = bound, bound.number
        if self._state != "idle":
            why = "the runtime is closed" if self._state == "closed" else "no worker runs"
            self._answer = self._answer if isinstance(self._answer, WorkerError) else WorkerLostError(why)
            return Call(self)
        self.step += 1
        self._totals.hangups += self._roster.hangups()
        self._state, self._answer = "running", None
        self._watch.begin(time.monotonic())
        headers, raw = frames.put(bound.arena.buffer(name) for name in self._carried[bound.number].step)
        message = m.Step(self.epoch, self.step, bound.number, headers, self._turn.bank, after)
        self._turn.bank = (self._turn.bank + 1) % shared.BANKS
        self._post(self.devices.index(bound.plan.entry), message, raw)
        return Call(self)

    def abandon(self) -> None:
        """Nobody waits for the call any more. If workers are still at it, they are lost: the next call says so."""
        if self._answer is None and self._state in ("running", "aborting", "starting"):
            self.fail(WorkerLostError("the call before was given up while the workers were at it"))

    def _post(self, worker: int, message: m.Message, raw: Sequence[bytes] = ()) -> None:
        self._totals.hops += isinstance(message, m.Step)
        try:
            self._roster.post(worker, message, raw)
        except WorkerLostError as error:
            self.fail(error)

    @property
    def answer(self) -> Outputs | DraftlineError | None:
        """What the current call or start came to; None while it is under way."""
        return self._answer

    def sockets(self) -> list[Any]:
        """What becomes readable when something happens."""
        return self._roster.sources()

    def patience(self) -> float:
        """Seconds after which to look again who is late."""
        return LOOK

    def pump(self, timeout: float) -> None:
        """Handle what has come, waiting up to ``timeout`` seconds for the first of it; then look who is late."""
        dead = self._roster.poll(timeout)
        for message in self._roster.receive():
            if isinstance(message, TransportError):
                self._totals.refused += 1
            else:
                self._handle(*message)
            if self._answer is not None:
                break  # what else has come can wait for the next call
        if self._answer is None and dead is not None:
            self._died(dead)
        elif self._answer is None:
            self._check_deadlines()

    def _handle(self, message: m.Message, raw: Sequence[bytes]) -> None:
        of_a_step = isinstance(message, m.Done | m.Failed | m.Idle)
        if (
            message.epoch != self.epoch
            or (
                of_a_step and (message.step != self.step or self._state not in ("running", "aborting"))  # type: ignore[union-attr]
            )
            or (isinstance(message, m.Done) and self._state == "aborting")
        ):
            self._totals.late += 1
        elif isinstance(message, m.Ready) and self._state == "starting" and self._roster.expected(message):
            self._ready(message)
        elif isinstance(message, m.Done) and self._state == "running":
            self._done(message, raw)
        elif isinstance(message, m.Failed):
            self._abort(message)
        elif isinstance(message, m.Idle) and self._state == "aborting":
            self._waiting_for.discard(message.worker)
            if not self._waiting_for:
                self._state, self._answer = "idle", self._error
        else:
            self._totals.refused += 1

    def _ready(self, message: m.Ready) -> None:
        if message.worker in self._waiting_for:
            self._waiting_for.discard(message.worker)
            self._where[message.worker] = message.inbox
        if not self._waiting_for:
            self._roster.connect(self._where)
            self._state, self._answer = "idle", {}
            for n in range(len(self.devices)):
                self._post(n, m.Peers(self.epoch, tuple(self._where)))

    def _done(self, message: m.Done, raw: Sequence[bytes]) -> None:
        bound = self._current
        try:
            names = self._carried[bound.number].done
            frames.take(message.tensors, raw, [bound.arena.buffer(name) for name in names])
        except TransportError:
            self._totals.refused += 1
            return
        self._state, self._failures = "idle", 0
        self._totals.steps += 1
        self._totals.hops += 1
        self._answer = bound.outputs

    def _abort(self, message: m.Failed) -> None:
        """Have all workers forget the step; the first failure is the one that counts."""
        if self._state != "running":
            return
        self._error = StageError(f"{message.message} (worker {message.worker}, step {message.step})")
        self._error.add_note(message.traceback)
        self._state, self._waiting_for = "aborting", set(range(len(self.devices)))
        self._watch.begin(time.monotonic())
        for n in range(len(self.devices)):
            self._post(n, m.Abort(self.epoch, self.step))

    @property
    def totals(self) -> Totals:
        """The counters as they are now: a copy, which any thread may ask for."""
        cells = self._memory.cells.sum(0) if self.epoch else 0
        return shared.counted(self._totals, self._earlier + cells)

    # -- who is late, who is dead ----------------------------------------------------------------------------

    def _check_deadlines(self) -> None:
        now, children = time.monotonic(), self._roster.children
        if self._state == "starting" and now - self._began > self.limits.start_timeout:
            missing = [children[n] for n in sorted(self._waiting_for)]
            self.fail(blame.not_ready(missing, self._memory.cells, self.limits.start_timeout))
        elif self._state in ("running", "aborting"):
            found = self._watch.late(self._current.plan, self.step, now)
            if found is not None:
                age = now - self._memory.cells[found.worker][shared.BEAT] / 1e9
                self.fail(blame.late(children[found.worker], self.step, found.what, age))

    def _died(self, child: Child) -> None:
        if self._state == "starting":
            self.fail(blame.no_start(child, self._memory.cells))
        else:
            self.fail(blame.lost(child, self.step, self._watch.where(child.index)))

    def fail(self, error: WorkerError) -> None:
        """The call under way, or the start, came to this."""
        self._state, self._answer = "failed", error

    # -- what there is to see, and the end -------------------------------------------------------------------

    def tracks(self) -> list[tuple[str, Spans]]:
        """(device, spans) of every worker."""
        return list(zip(self.devices, self._rings, strict=True))

    @property
    def captures(self) -> int:
        """Segments captured by the workers that run now."""
        return int(self._memory.cells[:, shared.CAPTURES].sum())

    @property
    def pids(self) -> list[int]:
        """The workers' process ids, by number."""
        return [child.pid for child in self._roster.children]

    @property
    def directory(self) -> str:
        """The run directory."""
        return self._roster.directory

    def close(self) -> None:
        """Ask the workers to end, make them end, remove the run directory. May be called again."""
        self.retire()
        self._roster.close()
        if self.epoch:
            self._free()

    def retire(self) -> None:
        """Ask the workers to end, and do not wait; ``close`` does."""
        if self._state == "closed":
            return
        if self._state == "idle":
            for n in range(len(self._roster.children)):
                self._post(n, m.Stop(self.epoch))
        self._roster.retire(self._state == "idle")
        self._state, self._answer = "closed", None

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
