"""Each worker owns cores, and waits without spinning."""

from __future__ import annotations

import time

import psutil
import pytest
from decoding import decode
from hypothesis import given
from hypothesis import strategies as st

from draftline.runtime.pipeline import open_pipeline
from draftline.runtime.workers.cores import available, share


@given(st.lists(st.integers(0, 300), min_size=1, max_size=64, unique=True), st.integers(1, 80))
def test_cores_are_shared_out_evenly(cores, workers):
    parts = share(cores, workers)
    assert len(parts) == workers
    assert all(parts)
    used = [core for part in parts for core in part]
    if workers <= len(cores):
        assert used == cores  # every core once
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert set(used) == set(cores)
        counts = [used.count(core) for core in cores]
        assert max(counts) - min(counts) <= 1


@pytest.mark.timeout(60)
def test_an_idle_worker_costs_next_to_nothing(clean):
    with open_pipeline("mtp-zmq.yaml", max_num_seqs=3) as pipeline:
        decode(pipeline)  # its threads have worked and now wait
        time.sleep(0.5)
        workers = [psutil.Process(pid) for pid in pipeline.engine.runtime.pids]
        before = [sum(w.cpu_times()[:2]) for w in workers]
        time.sleep(5)
        spent = [sum(w.cpu_times()[:2]) - b for w, b in zip(workers, before, strict=True)]
        assert max(spent) < 0.05, spent


@pytest.mark.timeout(60)
def test_workers_own_cores_of_their_own(clean):
    cores = available()
    with open_pipeline("mtp-zmq.yaml") as pipeline:
        owned = [psutil.Process(pid).cpu_affinity() for pid in pipeline.engine.runtime.pids]
        environments = [psutil.Process(pid).environ() for pid in pipeline.engine.runtime.pids]
    assert owned == share(cores, 2)
    assert all(env["OMP_WAIT_POLICY"] == "PASSIVE" for env in environments)
