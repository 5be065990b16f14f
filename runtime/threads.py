"""How many threads a process computes with.

Knows: the size of a model's weights, cores, OMP_NUM_THREADS. Does not know: what is computed.

A thread that helps must be woken for every operation, which on the machines measured costs 50 to 100 us: tiny-v4 takes
11 ms per step on one thread and 35 ms on two (``pipeline-run`` with ``--threads 1`` and ``--threads 2``). Threads that
spin in place of sleeping hide that, until a second process wants the same cores: then a step takes 180 ms and more. So
a small model gets one thread, however many cores there are. The rule is fixed, not measured at start-up, because the
split of a sum over threads may change its last bit.
"""

from __future__ import annotations

import os
from pathlib import Path

BYTES_PER_THREAD = 32 * 2**20
"""Weights on disk that are worth one more thread: some milliseconds of memory traffic."""


def weight_bytes(folder: Path) -> int:
    """Bytes of the weight files in a model's folder."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def threads_for(asked: int, nbytes: int, cores: int) -> int:
    """``asked`` threads; if that is 0, OMP_NUM_THREADS, and without it one per BYTES_PER_THREAD of the ``nbytes`` of
    weights, at most one per core."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if asked:
        return asked
    if told.isdigit() and int(told):
        return min(int(told), cores)
    return max(1, min(cores, nbytes // BYTES_PER_THREAD))
