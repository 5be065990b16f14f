"""The folder in which compiled code is kept between processes: one process at a time, and no damaged file in it.

Knows: the folder, its lock, digests of its files. Does not know: what is in them, who writes them.

A library that was cut off ends the process when it is loaded, so every file is compared with the digest that was taken
when it was whole. A folder in which one differs is emptied; a file without a digest was being written when its process
died, and goes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftline.graph.errors import CapacityError

SUMS, LOCK = "sums.json", ".lock"
OURS = (SUMS, LOCK)


@contextmanager
def kept(folder: Path, variable: str) -> Iterator[None]:
    """Hold the folder, with its path in the environment variable ``variable``; waits while another process holds it.

    Raises CapacityError if it cannot be written."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise CapacityError(
            f"--capture inductor: the compile cache {folder} cannot be used: {error}; --capture eager needs none"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(folder)
        before = os.environ.get(variable)
        os.environ[variable] = str(folder)
        try:
            yield
            _record(folder)
        finally:
            if before is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = before


def sweep(folder: Path) -> None:
    """Remove what is not as it was recorded. For who holds the lock."""
    try:
        sums = json.loads((folder / SUMS).read_text("utf-8"))
        if not isinstance(sums, dict):
            raise ValueError("not a table of digests")
    except (OSError, ValueError):
        sums = {}
    found = _digests(folder)
    if any(sums.get(name, digest) != digest for name, digest in found.items()):
        sums = {}  # one is damaged, and others may refer to it: none stays
    for name in found.keys() - sums.keys():
        (folder / name).unlink(missing_ok=True)


def _record(folder: Path) -> None:
    """Write the digests of what is there, whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(_digests(folder), file)
    os.replace(temporary, folder / SUMS)


def _digests(folder: Path) -> dict[str, str]:
    """Path below ``folder`` → digest, of every file but our own."""
    files = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    return {
        str(path.relative_to(folder)): hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        for path in files
        if path.name not in OURS
    }
