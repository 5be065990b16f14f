"""SmolLM2, fetched once per test run with the real command. Helper for tests; no tests in here."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from draftline.stages.models.places import fetched_root

COMMAND = [sys.executable, "-m", "draftline.runtime.fetch.cli", "smollm2"]


def fetched() -> Path:
    """The model's folder in the machine's cache; downloads it (93 MB) the first time, as a user would."""
    root = fetched_root()
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".test-lock").open("w") as lock:  # two test processes want it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return root / "smollm2"


def killed_fetch(cache: Path) -> int:
    """Start a fetch into a cache of its own and kill it as soon as it works; its exit code."""
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with subprocess.Popen(COMMAND, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list((cache / "draftline" / "models").glob(".fetching-*/*")):
            time.sleep(0.005)
        process.kill()
        return process.wait()
