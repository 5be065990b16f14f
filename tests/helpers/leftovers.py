"""What a run of worker processes has left behind. Helper for tests; no tests in here."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil


def leftovers(base: Path, seconds: float = 2.0) -> list[str]:
    """Run directories, shared memory and child processes that are still there after ``seconds`` at most."""
    end = time.monotonic() + seconds
    while True:
        shm = [p for p in os.listdir("/dev/shm") if "draftline" in p] if os.path.isdir("/dev/shm") else []
        children = [f"{p.pid} {p.cmdline()[:4]}" for p in psutil.Process().children() if is_worker(p)]
        found = [*os.listdir(base), *shm, *children]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def is_worker(process: psutil.Process) -> bool:
    """Whether it is a worker of ours, alive or a zombie that nobody has waited for."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return any("draftline.runtime.workers" in part for part in process.cmdline())
    except psutil.Error:
        return False


def workers_of(directory: str) -> list[psutil.Process]:
    """Worker processes anywhere on this machine whose run directory is, or lies in, ``directory``."""
    found = []
    for process in psutil.process_iter():
        try:
            if is_worker(process) and any(part.startswith(directory) for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def alive(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after ``seconds`` at most. An orphan that has ended and waits for the system's first process
    to take note of it does not run."""
    end = time.monotonic() + seconds
    while True:
        left = [p for p in processes if _runs(p)]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
