"""Who is late. Knows: the workers' cells, the plans' deadlines. Does not know: processes, messages.

A worker that runs writes into its cells at every instruction; so the cells say at what it is, and since when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftline.compiler.plan import Instruction, Plan

from . import shared


@dataclass(frozen=True)
class Late:
    """``worker`` is late; ``what`` says at what."""

    worker: int
    what: str


class Watch:
    """Looks at the cells of one group."""

    def __init__(self, plans: Sequence[Plan], devices: Sequence[str], cells: shared.Cells) -> None:
        self._plans, self._devices, self._cells = plans, devices, cells
        self._quiet = 0.0

    def begin(self, now: float) -> None:
        """A step was sent."""
        self._quiet = now

    def where(self, worker: int) -> str:
        """At which instruction a worker is, to be put behind a message; empty if it is at none."""
        if self._cells[worker][shared.STATE] != shared.RUNNING:
            return ""
        return f", at {_text(self._instruction(worker))}"

    def late(self, plan: Plan, step: int, now: float) -> Late | None:
        """Who is late in this step of ``plan`` at ``now`` (CLOCK_MONOTONIC seconds). Who waits for another is late
        only if nobody works."""
        workers = range(len(self._devices))
        running = [n for n in workers if self._cells[n][shared.STATE] == shared.RUNNING]
        late = [n for n in running if now - self._cells[n][shared.BEAT] / 1e9 > self._deadline(n)]
        busy = [n for n in running if self._instruction(n).op != "WAIT"]
        late = [n for n in late if n in busy or not busy]  # who waits for somebody that works is not late
        if late:
            return Late(late[0], f"at {_text(self._instruction(late[0]))} for more than {self._deadline(late[0]):g} s")
        if running:
            self._quiet = now
        elif now - self._quiet > (limit := plan.deadline("READ")):
            # Nobody runs and nobody has answered: who has not begun has not taken its message.
            mine = {w.device for w in plan.workers}
            waiting = [n for n in workers if self._devices[n] in mine and self._cells[n][shared.STEP] < step]
            worker = waiting[0] if waiting else self._devices.index(plan.exit)
            return Late(worker, f"it has neither taken nor answered a message for {limit:g} s")
        return None

    def _instruction(self, worker: int) -> Instruction:
        plan = self._plans[self._cells[worker][shared.PLAN]]
        program = next(w for w in plan.workers if w.device == self._devices[worker])
        return program.instructions[self._cells[worker][shared.INDEX]]

    def _deadline(self, worker: int) -> float:
        return self._plans[self._cells[worker][shared.PLAN]].deadline(self._instruction(worker).op)


def _text(instruction: Instruction) -> str:
    what = instruction.segment or (f"edge {instruction.edge}" if instruction.edge >= 0 else "")
    return f"{instruction.op} {what}".strip()
