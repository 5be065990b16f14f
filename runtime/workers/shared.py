"""Memory that driver and workers share: control cells, trace rings, the arena.

Knows: an anonymous file that each process maps. Does not know: plans, messages.

The file has no name anywhere (``memfd_create``, elsewhere an unlinked temporary file): children inherit its
descriptor, and the system frees it with the last process that holds it, however that process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..running import Totals
from ..trace import SPAN_FIELDS, SPAN_ROWS, Spans

Cells = np.ndarray
"""int64 [CELLS]: one worker's line, written by that worker alone."""

BEAT, STATE, EPOCH, STEP, PLAN, INDEX, SIGNALS, WAVES, CAPTURES, REFUSED, LATE, CANCELLED, HANGUPS = range(13)
CELLS = 16
"""BEAT: CLOCK_MONOTONIC in ns when the work loop last moved; STATE: one of ``STATES``; EPOCH, STEP, PLAN and INDEX:
what it is at; the rest counts since the worker was started."""

STATES = ("starting", "importing", "loading the model", "binding the plans", "idle", "running")
IDLE, RUNNING = 4, 5

PAGE = 4096
BANKS = 2


def counted(totals: Totals, cells: Cells) -> Totals:
    """``totals`` of the driver with what the workers' cells, summed up, have counted."""
    return replace(
        totals,
        hops=totals.hops + int(cells[SIGNALS]),
        waves=totals.waves + int(cells[WAVES]),
        cancelled=totals.cancelled + int(cells[CANCELLED]),
        late=totals.late + int(cells[LATE]),
        refused=totals.refused + int(cells[REFUSED]),
        hangups=totals.hangups + int(cells[HANGUPS]),
    )


@dataclass(frozen=True)
class MemoryLayout:
    """Bytes of the shared file: cells of all workers, their trace rings (if any), two banks of metadata, the arena."""

    workers: int
    arena: int
    trace: bool
    bank: int = 0

    @property
    def _rings(self) -> int:
        return self.workers * 8 * (1 + SPAN_ROWS * SPAN_FIELDS) if self.trace else 0

    @property
    def spans_at(self) -> int:
        return _pages(self.workers * CELLS * 8)

    @property
    def banks_at(self) -> int:
        return _pages(self.spans_at + self._rings)

    @property
    def arena_at(self) -> int:
        return _pages(self.banks_at + BANKS * self.bank)

    @property
    def nbytes(self) -> int:
        return _pages(self.arena_at + max(self.arena, 1))


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def create(nbytes: int) -> int:
    """A descriptor of ``nbytes`` zero bytes without a name. The caller closes it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("draftline-arena", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, nbytes)
    return fd


class Shared:
    """The file, mapped. The mapping lives as long as a tensor or array of it does."""

    def __init__(self, fd: int, layout: MemoryLayout) -> None:
        self.layout = layout
        map_ = mmap.mmap(fd, layout.nbytes)
        self._bytes = np.frombuffer(map_, dtype=np.uint8)
        self.cells = self._bytes[: layout.workers * CELLS * 8].view(np.int64).reshape(layout.workers, CELLS)

    def spans(self, worker: int) -> Spans:
        """The worker's trace ring; one that keeps nothing if the run is not traced."""
        if not self.layout.trace:
            return Spans(None)
        size = 8 * (1 + SPAN_ROWS * SPAN_FIELDS)
        start = self.layout.spans_at + worker * size
        return Spans(self._bytes[start : start + size].view(np.int64))

    def arena(self) -> Tensor:
        """The arena's bytes."""
        start = self.layout.arena_at
        return torch.from_numpy(self._bytes[start : start + self.layout.arena])

    def banks(self) -> Tensor:
        """Metadata on its way [BANKS, bytes]: a step's lies in one while the driver writes the next one's."""
        start = self.layout.banks_at
        return torch.from_numpy(self._bytes[start : start + BANKS * self.layout.bank]).view(BANKS, self.layout.bank)

    def clear(self) -> None:
        """Forget everything: a new epoch begins. No worker may be alive."""
        self._bytes[:] = 0
