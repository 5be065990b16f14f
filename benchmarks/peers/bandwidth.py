"""Read bandwidth of this machine's memory with the race's threads: what bounds decoding one token at a time.

Method: ``torch.sum`` of 1 GiB of float32, far above every cache, which reads each byte once and writes none; the best
of several passes, since noise only ever slows one down.
"""

from __future__ import annotations

import time

import torch


def read_bandwidth(threads: int, passes: int = 9, nbytes: int = 2**30) -> float:
    """Bytes per second."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    data, best = torch.ones(nbytes // 4), float("inf")
    try:
        for _ in range(passes):
            start = time.perf_counter()
            data.sum()
            best = min(best, time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return nbytes / best
