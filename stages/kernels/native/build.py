"""Compiling the C++ sources beside this file, once per machine and version.

Knows: the compiler, its flags, the cache. Does not know: what the code computes.

``-ffp-contract=off``: the compiler may not fuse a product and a sum where it likes, because the same expression must
round the same way in every place that it is inlined into.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from draftline.graph.errors import CapacityError
from draftline.stages.models.places import cache_root

FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
SOURCES = Path(__file__).parent
ADVICE = "--kernels reference needs no compiler"
log = logging.getLogger("draftline.kernels")


def compiler() -> str | None:
    """``$CXX``, g++ or clang++; None if there is none."""
    told = os.environ.get("CXX")
    return told or next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)


def cpu_text() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    return "\n".join(
        next((line for line in lines if line.startswith(key)), "") for key in ("model", "flags", "Features")
    )


def _key(cxx: str) -> str:
    parts = [" ".join(FLAGS), _run([cxx, "--version"]), cpu_text(), os.uname().machine]
    parts += [p.read_text("utf-8") for p in sorted(SOURCES.iterdir()) if p.suffix in (".cpp", ".h")]
    return _digest("\0".join(parts).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _run(command: list[str]) -> str:
    """What the command prints. Raises CapacityError with its first complaint."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise CapacityError(f"native kernels: {command[0]} cannot be run: {error.strerror}; {ADVICE}") from None
    if done.returncode:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        raise CapacityError(f"native kernels: {command[0]} failed: {said[0]}; {ADVICE}")
    return done.stdout


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernels. Raises CapacityError where there is no compiler, it fails, or the cache cannot be written.

    A file's name ends in the hash of its content: one that was cut off would end the process when it is loaded."""
    cxx = compiler()
    if cxx is None:
        raise CapacityError(f"native kernels need a C++ compiler (g++, clang++ or $CXX); {ADVICE}")
    key, folder = _key(cxx), cache_root() / "kernels"
    try:
        whole = (p for p in folder.glob(f"{key}-*.so") if p.stem == f"{key}-{_digest(p.read_bytes())}")
        return ctypes.CDLL(str(next(whole, None) or _compile(cxx, folder, key)))
    except OSError as error:
        raise CapacityError(f"native kernels: {folder}: {error}; {ADVICE}") from None


def _compile(cxx: str, folder: Path, key: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    log.info("compiling native kernels into %s", folder)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work, "kernels.so")
        _run([cxx, *FLAGS, "-o", str(made), str(SOURCES / "decoder.cpp")])
        path = folder / f"{key}-{_digest(made.read_bytes())}.so"
        os.replace(made, path)  # whole or not at all, also beside another process that does the same
    return path


@functools.cache
def available() -> bool:
    """Whether native kernels can be used here; why not is logged once."""
    try:
        library()
    except CapacityError as error:
        log.warning("%s: falling back to the reference kernels, which are slower", error)
        return False
    return True
