"""A worker never outlives its driver, and the last one out removes the run directory.

Knows: prctl, a pipe whose other end the driver holds. Does not know: torch, zmq: this runs before anything is imported.

Three layers, because each has a hole. The watcher thread sees the pipe close when the driver is gone, removes the run
directory and ends the process; it needs the interpreter lock, which a stage may hold in C code for ever. So the kernel
also sends SIGHUP when the driver dies (Linux), and its handler is libc's own ``alarm``: called with the signal's
number, 1, it lets SIGALRM end the process one second later, whatever Python is doing. And if the driver died before
either was set up, the parent is another one by then.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def arm(parent: int, death_pipe: int, directory: str) -> None:
    """Set all three up. Ends the process if the driver is gone already."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interrupt means
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(signal.SIGHUP, ctypes.cast(libc.alarm, ctypes.c_void_p))
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0):
            print(f"worker: prctl failed with errno {ctypes.get_errno()}", file=sys.stderr)
    threading.Thread(target=_watch, args=(death_pipe, directory), name="watch-driver", daemon=True).start()
    if os.getppid() != parent:
        _end(directory)


def _watch(death_pipe: int, directory: str) -> None:
    while os.read(death_pipe, 1):
        pass
    _end(directory)


def _end(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)
