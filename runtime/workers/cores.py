"""Which CPU cores a worker owns. Knows: the cores that this process may use. Does not know: what runs on them."""

from __future__ import annotations

import os
from itertools import pairwise


def available() -> list[int]:
    """Cores that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def share(cores: list[int], workers: int) -> list[list[int]]:
    """The cores of each of ``workers`` workers: equal parts, neighbours together; with more workers than cores, one
    core each, in turn. Nobody spins (the wait policy is passive), so two workers on a core cost what they compute."""
    if workers >= len(cores):
        return [[cores[w % len(cores)]] for w in range(workers)]
    edges = [w * len(cores) // workers for w in range(workers + 1)]
    return [cores[a:b] for a, b in pairwise(edges)]


def own(cores: list[int], threads: int) -> None:
    """In a worker, before torch is imported: stay on these cores, with so many threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(threads)
