"""What a worker does in a step: instructions on views of buffers, and the messages between workers.

Knows: the nouns of a program. Does not know: the plan around them, how a program is made or run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class View:
    """A buffer, or its slice ``[start, start + length)`` along ``axis``; ``axis`` None is the whole buffer.

    ``squeeze`` (only with length 1) drops the axis: iteration i of a collected [N, K] is a [N] column.
    """

    buffer: str
    axis: int | None = None
    start: int = 0
    length: int = 0
    squeeze: bool = False


@dataclass(frozen=True)
class LiveAbove:
    """True if more than ``n`` elements of the bool buffer are true when the instruction is reached."""

    buffer: str
    n: int


@dataclass(frozen=True)
class RowsAbove:
    """True if more than ``n`` elements of the int64 buffer ``positions`` are 0 or more when the instruction is reached:
    rows that stand for somebody."""

    positions: str
    n: int

    @property
    def buffer(self) -> str:
        return self.positions


Condition = LiveAbove | RowsAbove


@dataclass(frozen=True)
class Copy:
    """Copy ``source`` over the whole buffer ``target``; a bool buffer without a source becomes true everywhere."""

    source: View | None
    target: str


Operation = Literal["READ", "WAIT", "RUN", "POLL", "SIGNAL", "WRITE"]


@dataclass(frozen=True)
class Instruction:
    """READ: the driver's ``buffers`` are in the arena before the next instruction. RUN: run ``segment`` (as
    wave ``wave``). WRITE: do ``copies`` in order, then ``buffers`` are the driver's to read. ``when`` None
    means always; a RUN whose condition is false is skipped without any effect.

    SIGNAL: tell the target of ``edge`` that all before this is done. WAIT: go on once that has been told. POLL: do
    ``copies`` if it has been told by now, else ``otherwise``; it never waits."""

    op: Operation
    segment: str = ""
    wave: int = 0
    when: Condition | None = None
    buffers: tuple[str, ...] = ()
    copies: tuple[Copy, ...] = ()
    edge: int = -1
    otherwise: tuple[Copy, ...] = ()


@dataclass(frozen=True)
class Edge:
    """One message from the worker of ``source`` to the worker of ``target`` in every step; its place in
    ``Plan.edges`` is its number."""

    source: str
    target: str


@dataclass(frozen=True)
class WorkerProgram:
    """What the worker that owns ``device`` does in a step, in order. In one program (the entry's) no WAIT comes
    first: the driver starts that worker, and it starts the others. The driver hears from the worker that runs the
    last segment, when all have done their part."""

    device: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Deadline:
    """The longest that a worker may take for one instruction of this kind, in seconds."""

    op: Operation
    seconds: float
