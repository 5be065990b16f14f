"""Worker processes: started, watched, ended.

Knows: Popen, pipes, signals, logs. Does not know: messages, plans.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftline.graph.errors import UsageError, WorkerLostError, WorkerStartError

from . import boot as boots

TAIL = 2000
"""Characters of a worker's stderr that an error shows."""


@dataclass
class Child:
    """One worker process. ``sentinel`` becomes readable when it ends (None where the system has no pidfd)."""

    index: int
    device: str
    process: subprocess.Popen[bytes]
    log: Path
    sentinel: int | None

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        return f"worker {self.index} ({self.device}, pid {self.pid})"

    def alive(self) -> bool:
        return self.process.poll() is None

    def ending(self) -> str:
        """How it ended: ``was killed by SIGKILL``, ``ended with exit code 3``."""
        code = self.process.poll()
        if code is None:
            return "is running"
        if code < 0:
            known = {s.value: s.name for s in signal.Signals}
            return f"was killed by {known.get(-code, f'signal {-code}')}"
        hint = " (128 + SIGKILL: out of memory?)" if code == 137 else ""
        return f"ended with exit code {code}{hint}"

    def tail(self) -> str:
        """The last of what it wrote to stderr and stdout, ready to be put behind a message."""
        try:
            text = self.log.read_text("utf-8", "replace").strip()
        except OSError:
            return ""
        return f"\n  its last words:\n{_indent(text[-TAIL:])}" if text else "; it wrote nothing to stderr"


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def spawn(boot: boots.Boot, directory: Path, death_pipe: int) -> tuple[Child, int]:
    """Start a worker; it waits for its boot record on the pipe whose write end is given back.

    Raises UsageError outside the main thread (a worker is told to end when the thread that started it does) and
    WorkerStartError if the system starts no process.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "workers are started from the main thread only: the kernel ends a worker with the thread that started it"
        )
    log = directory / f"worker-{boot.index}.log"
    try:
        read, write = os.pipe()
    except OSError as error:  # no descriptors left
        raise WorkerStartError(f"worker {boot.index} ({boot.device}) cannot be started: {error}") from error
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", __package__ + ".main", str(read), str(death_pipe), str(os.getpid()), directory],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(read, death_pipe, boot.memory_fd),
                process_group=0,  # an interrupt from the terminal is the driver's to handle
                env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            )
    except OSError as error:
        os.close(write)
        raise WorkerStartError(f"worker {boot.index} ({boot.device}) cannot be started: {error}") from error
    except BaseException:
        os.close(write)
        raise
    finally:
        os.close(read)
    return Child(boot.index, boot.device, process, log, _sentinel(process.pid)), write


def _sentinel(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # a kernel without it, or no descriptors left: the process is polled instead
        return None


def signal_all(children: Sequence[Child]) -> None:
    """SIGTERM to all that run."""
    for child in children:
        if child.alive():
            child.process.send_signal(signal.SIGTERM)


def stop(children: Sequence[Child], grace: float) -> None:
    """End all: SIGTERM, ``grace`` seconds, then SIGKILL.

    Raises WorkerLostError if one is still there after that, which only the kernel can cause.
    """
    for send, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
        for child in children:
            if child.alive():
                child.process.send_signal(send)
        wait(children, seconds)
    left = [str(child) for child in children if child.alive()]
    for child in children:
        if child.sentinel is not None:
            os.close(child.sentinel)
            child.sentinel = None
    if left:
        raise WorkerLostError(f"{', '.join(left)} cannot be killed")


def wait(children: Sequence[Child], seconds: float) -> None:
    """Until all have ended, or for so many seconds in all."""
    end = time.monotonic() + seconds
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, end - time.monotonic()))
