"""One engine's process: started, asked, stopped while others run, measured, killed over its memory limit.

Knows: processes, the lines of ``engines/wire.py``, /proc. Does not know: engines, orders, statistics. Linux only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ONE_THREAD_POOL = {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

LOOK = 0.5
"""Seconds between two looks at a running engine's memory limit; each walks /proc once, some milliseconds."""


class EngineError(Exception):
    """An engine said why it cannot go on, ended, or was late."""


def tree(root: int) -> list[int]:
    """The process ``root`` and its descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:  # grows while it is read
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def resident(pids: Sequence[int]) -> int:
    """Resident bytes of the processes, added up; a page that two of them share counts twice."""
    pages = 0
    for pid in pids:
        with suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def high_water(pids: Sequence[int]) -> int:
    """The largest resident sizes that each of the processes ever had, added up, in bytes. The kernel keeps them, so
    nothing has to look while an engine is timed."""
    kib = 0
    for pid in pids:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            kib += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return kib * 1024


@dataclass(frozen=True)
class Answered:
    """Tokens per prompt; seconds of the whole call; tokens per target step, where the engine tells."""

    tokens: list[list[int]]
    seconds: float
    length: float | None


class EngineProcess:
    """A running engine. ``close`` it. ``peak``: ``high_water`` of its process tree after its last answer."""

    def __init__(
        self,
        command: Sequence[str | Path],
        options: Mapping[str, Any],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        start_timeout: float = 300,
        memory_limit: int = 16 * 2**30,
    ) -> None:
        """Start and wait until the engine is ready. Raises EngineError."""
        self.log, self.peak, self._limit, self._over = log, 0, memory_limit, False
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*map(str, command), json.dumps(dict(options))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **ONE_THREAD_POOL, **(env or {})},
                start_new_session=True,  # a group of its own: stopped, continued and killed as one
            )
        self._closing, self._running = threading.Event(), True
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()
        self._rest = b""
        try:
            self.versions: dict[str, str] = self._read(start_timeout)["versions"]
        except BaseException:
            self.close()
            raise

    def _sample(self) -> None:
        while not self._closing.wait(LOOK):
            if self._running and resident(tree(self._process.pid)) > self._limit:
                self._over = True
                self._signal(signal.SIGKILL)
                return

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self, timeout: float) -> dict[str, Any]:
        """The next message. Raises EngineError for an error, the end, silence, or a line that is no message."""
        assert self._process.stdout is not None
        end = time.monotonic() + timeout
        fd = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise EngineError(f"no answer within {timeout:.0f} s; see {self.log}")
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                if self._over:
                    raise EngineError(f"killed above {self._limit / 2**30:.1f} GiB of memory; see {self.log}")
                raise EngineError(f"the process ended with code {self._process.wait(10)}; see {self.log}")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise EngineError(f"not a message: {line[:80]!r}; see {self.log}") from error
        if "error" in message:
            raise EngineError(f"{message['error']}; see {self.log}")
        return message

    def ask(self, prompts: Sequence[Sequence[int]], new_tokens: int, timeout: float = 300) -> Answered:
        """Decode. The engine runs during this call only if it was ``stop``ped before. Raises EngineError."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._running = True
        line = json.dumps({"prompts": [list(p) for p in prompts], "new_tokens": new_tokens}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # _read says how it ended
        message = self._read(timeout)
        self.peak = max(self.peak, high_water(tree(self._process.pid)))
        return Answered(message["tokens"], message["seconds"], message["length"])

    def stop(self) -> None:
        """Let the engine's processes not run until the next ``ask``: threads that spin would slow the others."""
        self._running = False
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Kill the whole group and wait for it."""
        self._closing.set()
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._watch.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
