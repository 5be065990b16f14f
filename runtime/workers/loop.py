"""The worker's loop: wait for a message, run this device's part of a step, answer.

Knows: one device's programs, its inbox, whom it tells. Does not know: requests, other workers' programs.
"""

from __future__ import annotations

import gc
import math
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import zmq

from draftline.compiler.capture import Capture, backend
from draftline.compiler.frames import Carried, carried, travelling
from draftline.compiler.plan import Plan
from draftline.graph.errors import StageError, TransportError
from draftline.stages.models.core import Loaded
from draftline.stages.models.registry import locate
from draftline.stages.registry import lookup as builtin_lookup

from .. import ahead
from ..arena import Arena, ArenaLayout, arena_layout, metadata_arrays
from ..deployment import load
from ..execute import Lookup, Program, build_stages
from . import checks, frames, shared, ship
from . import messages as m
from .boot import Boot
from .endpoints import Curve
from .sockets import admit_only, hangups, inbox, outbox, post, watch_hangups

NOTHING = Carried((), (), ())
"""What messages carry where memory is shared."""


class _Aborted(Exception):
    """The driver said that this step is over."""


class Worker:
    """One process's state. ``cells`` is its line in the shared memory: signs of life, counters."""

    def __init__(self, boot: Boot, luggage: bytes) -> None:
        self._boot = boot
        torch.set_num_threads(boot.threads)
        plans = [Plan.from_json(text) for text in boot.plans]
        layout = arena_layout(plans)
        arena, bank = (layout.nbytes, ahead.bank_bytes(plans)) if boot.shares_memory else (0, 0)
        memory = shared.Shared(boot.memory_fd, shared.MemoryLayout(len(boot.devices), arena, boot.trace, bank))
        os.close(boot.memory_fd)
        tensors = memory.arena() if boot.shares_memory else torch.zeros(layout.nbytes, dtype=torch.uint8)
        self._banks = memory.banks() if boot.shares_memory else None
        # A memoryview: one element is written several times per instruction, which numpy does ten times slower.
        self._cells, self._spans = memoryview(memory.cells[boot.index]), memory.spans(boot.index)
        self._cells[shared.EPOCH] = boot.epoch
        curve = None if boot.curve is None else Curve(*boot.curve)
        self._context = zmq.Context()
        self._guard = None if curve is None else admit_only(self._context, curve)
        self._inbox = inbox(self._context, boot.inbox, curve, boot.max_frame)
        self._hangups = watch_hangups(self._inbox)
        self._driver = outbox(self._context, boot.driver, curve)
        self._curve = curve
        self._peers: dict[str, zmq.Socket] = {}
        self._phase(2)
        model, lookup = self._load(ship.unpack(luggage))
        self._phase(3)
        self._backends: dict[str, Capture] = {}
        self._plans = plans
        self._bank, self._after = 0, 0
        self._committed: list[ahead.Committed | None] = []
        self._programs = [self._bind(plan, model, lookup, tensors, layout) for plan in plans]
        for one in self._backends.values():
            one.seal()
        states = frozenset[str]() if boot.shares_memory else travelling(plans)
        self._carried = [NOTHING if boot.shares_memory else carried(plan, states) for plan in plans]
        self._cells[shared.CAPTURES] = sum(b.captures for b in self._backends.values())
        self._step, self._signals = 0, set[int]()
        self._since = 0

    def _phase(self, state: int) -> None:
        self._cells[shared.STATE] = state
        self._beat()

    def _beat(self) -> None:
        self._cells[shared.BEAT] = time.monotonic_ns()

    def _load(self, luggage: ship.Luggage) -> tuple[Loaded, Lookup]:
        sizes, uses = self._boot.sizes, self._boot.uses
        if luggage.load is None:
            model = load(locate(self._boot.model, self._boot.mtp, self._boot.draft_model), sizes, uses)
        else:
            model = luggage.load(sizes)
        if "target" not in uses:
            model = replace(model, target=None)
        if "drafter" not in uses:
            model = replace(model, drafter=None)
        if "draft_model" not in uses:
            model = replace(model, draft_model=None)
        return model, lambda name: luggage.stages.get(name) or builtin_lookup(name)

    def _bind(
        self, plan: Plan, model: Loaded, lookup: Lookup, memory: torch.Tensor, layout: ArenaLayout
    ) -> Program | None:
        worker = next((w for w in plan.workers if w.device == self._boot.device), None)
        arena = Arena(plan, memory, layout)
        self._committed.append(ahead.committed(plan, arena))  # also where it has no part: its next step may follow
        if worker is None:
            return None
        stages = build_stages(plan, [worker.device], model, lookup, self._capture)
        return Program(plan, worker, arena, stages, self._capture, self._reader(plan, arena))

    def _reader(self, plan: Plan, arena: Arena) -> Callable[[], None]:
        """What brings the driver's inputs into the arena, where they are not there already."""
        if self._banks is None or plan.entry != self._boot.device:
            return lambda: None
        banks, in_arena = [ahead.bank(plan, one) for one in self._banks], metadata_arrays(plan, arena.metadata)

        def read() -> None:
            ahead.read(banks[self._bank], arena, in_arena, self._committed[self._after - 1] if self._after else None)

        return read

    def _capture(self, name: str) -> Capture:
        if name not in self._backends:
            self._backends[name] = backend(name)
        return self._backends[name]

    # -- the loop ------------------------------------------------------------------------------------------

    def serve(self) -> int:
        """Answer messages until told to stop; the exit code."""
        where = self._inbox.get_string(zmq.LAST_ENDPOINT)
        self._tell_driver(m.Ready(self._boot.epoch, self._boot.index, os.getpid(), where))
        self._phase(shared.IDLE)
        gc.collect()
        gc.freeze()  # what is here stays: no later collection has to look at it, which takes milliseconds
        with torch.inference_mode():
            while True:
                message = self._receive(self._boot.heartbeat)
                if isinstance(message, m.Stop):
                    break
                if isinstance(message, m.Peers):
                    self._connect(message)
                elif isinstance(message, m.Abort):
                    self._idle(message.step)
                elif isinstance(message, m.Step | m.Signal) and message.step > self._step:
                    self._begin(message)
                elif message is not None:
                    self._drop(message)
                else:
                    self._cells[shared.HANGUPS] += hangups(self._hangups)
                self._beat()
        self._inbox.disable_monitor()
        for socket in (self._hangups, self._inbox, self._driver, *self._peers.values()):
            socket.close()
        if self._guard is not None:
            self._guard.stop()
        self._context.term()
        return 0

    def _connect(self, message: m.Peers) -> None:
        for device, where in zip(self._boot.devices, message.inboxes, strict=False):
            if device != self._boot.device and device not in self._peers:
                self._peers[device] = outbox(self._context, where, self._curve)

    def _receive(self, timeout: float) -> m.Message | None:
        """The next message of this epoch within ``timeout`` seconds; what is none of ours is counted and dropped."""
        if timeout > 0 and not self._inbox.poll(math.ceil(timeout * 1000)):
            return None
        try:
            message, raw = m.unpack(self._boot.key, self._inbox.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return None
        except TransportError:
            self._cells[shared.REFUSED] += 1
            return None
        if message.epoch != self._boot.epoch:
            self._cells[shared.LATE] += 1
            return None
        right = checks.for_worker(message, self._plans, self._boot.devices, self._boot.device)
        if not right or not self._taken(message, raw):
            self._cells[shared.REFUSED] += 1
            return None
        return message

    def _taken(self, message: m.Message, raw: Sequence[bytes]) -> bool:
        """Bring a message's raw tensors into the arena; False if they are not what the plan says."""
        if not isinstance(message, m.Step | m.Signal) or self._boot.shares_memory:
            return not raw
        if message.step < self._step:
            return True  # late: counted, and not looked at
        program, names = self._programs[message.plan], self._carried[message.plan]
        assert program is not None
        wanted = names.step if isinstance(message, m.Step) else names.edges[message.edge]
        try:
            frames.take(message.tensors, raw, [program.arena.buffer(name) for name in wanted])
        except TransportError:
            return False
        return True

    def _begin(self, message: m.Step | m.Signal) -> None:
        """Run this worker's program of the step that the message belongs to."""
        program = self._programs[message.plan]
        assert program is not None
        self._step, self._plan = message.step, message.plan
        self._signals = {message.edge} if isinstance(message, m.Signal) else set()
        if isinstance(message, m.Step):
            self._bank, self._after = message.bank, message.after
        cells = self._cells
        cells[shared.STEP], cells[shared.PLAN], cells[shared.INDEX] = message.step, message.plan, 0
        self._phase(shared.RUNNING)
        try:
            self._run(program)
            if program.device == program.plan.exit:
                headers, raw = self._tensors(self._carried[self._plan].done)
                self._tell_driver(m.Done(self._boot.epoch, self._step, headers), raw)
        except _Aborted:
            self._idle(self._step)
        except StageError as error:  # whatever else is raised ends this process, and the driver sees that
            where = "".join(traceback.format_exception(error.__cause__ or error))
            index, epoch = self._boot.index, self._boot.epoch
            self._tell_driver(m.Failed(epoch, self._step, index, m.clip(str(error)), m.clip(where)))
        self._phase(shared.IDLE)

    def _run(self, program: Program) -> None:
        for edge in program.run(self):
            self._wait(edge)

    def _wait(self, edge: int) -> None:
        """Until the edge's signal is here; the driver knows for how long. Raises _Aborted if it gave the step up."""
        while edge not in self._signals:
            self._take(self._boot.heartbeat)
            self._cells[shared.HANGUPS] += hangups(self._hangups)

    def _take(self, timeout: float) -> None:
        """One message while a step runs. Raises _Aborted."""
        message = self._receive(timeout)
        if isinstance(message, m.Signal) and message.step == self._step:
            self._signals.add(message.edge)
        elif isinstance(message, m.Abort) and message.step == self._step:
            raise _Aborted
        elif isinstance(message, m.Stop):
            raise SystemExit(0)
        elif isinstance(message, m.Peers):  # it came by another connection than the signal that began the step
            self._connect(message)
        elif message is not None:
            self._drop(message)

    def _drop(self, message: m.Message) -> None:
        """Count a message that comes too late. A verdict that no draft waited for is none."""
        program = self._programs[message.plan] if isinstance(message, m.Signal) else None
        asked = program is not None and isinstance(message, m.Signal) and message.edge in program.polled
        self._cells[shared.LATE] += not asked

    def _idle(self, step: int) -> None:
        self._step = max(self._step, step)
        self._tell_driver(m.Idle(self._boot.epoch, step, self._boot.index))

    def _tell_driver(self, message: m.Message, raw: Sequence[bytes] = ()) -> None:
        post(self._driver, [*m.pack(self._boot.key, message), *raw])

    def _tensors(self, names: Sequence[str]) -> tuple[tuple[m.TensorHeader, ...], list[bytes]]:
        if self._boot.shares_memory:
            return (), []
        program = self._programs[self._plan]
        assert program is not None
        return frames.put(program.arena.buffer(name) for name in names)

    # -- what a program asks (execute.Links) -----------------------------------------------------------------

    def arrived(self, edge: int) -> bool:
        """Whether the signal is here; takes what has come meanwhile."""
        while edge not in self._signals and self._inbox.poll(0):
            self._take(0)
        return edge in self._signals

    def signal(self, edge: int) -> None:
        """Tell the worker at the other end."""
        self._cells[shared.SIGNALS] += 1
        program = self._programs[self._plan]
        assert program is not None
        carried = () if self._boot.shares_memory else self._carried[self._plan].edges[edge]
        headers, raw = self._tensors(carried)
        message = m.Signal(self._boot.epoch, self._step, self._plan, edge, headers)
        target = program.plan.edges[edge].target
        while target not in self._peers:
            self._take(self._boot.heartbeat)
        post(self._peers[target], [*m.pack(self._boot.key, message), *raw])

    def began(self, index: int) -> None:
        """A sign of life: the loop is at this instruction now."""
        self._since = time.monotonic_ns()
        self._cells[shared.INDEX] = index
        self._cells[shared.BEAT] = self._since

    def ended(self, index: int, ran: bool) -> None:
        """Count, and keep the span."""
        program = self._programs[self._plan]
        assert program is not None
        wave = program.segments[program.instructions[index].segment][0].per_wave
        self._cells[shared.WAVES] += ran and wave
        self._cells[shared.CANCELLED] += not ran and not wave
        if self._spans.on:
            self._spans.add(self._since, time.monotonic_ns(), self._step, self._plan, index, ran)
