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
log = logging.getLogger("draftline.kernels")


def compiler() -> str | None:
    """``$CXX``, g++ or clang++; None if there is none."""
    told = os.environ.get("CXX")
    return told or next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)


def _cpu() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    return "\n".join(
        next((line for line in lines if line.startswith(key)), "") for key in ("model", "flags", "Features")
    )


def _key(cxx: str) -> str:
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True).stdout
    parts = [" ".join(FLAGS), version, _cpu(), os.uname().machine]
    parts += [p.read_text("utf-8") for p in sorted(SOURCES.iterdir()) if p.suffix in (".cpp", ".h")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernels. Raises CapacityError where there is no compiler, or it fails."""
    cxx = compiler()
    if cxx is None:
        raise CapacityError(
            "native kernels need a C++ compiler (g++ or clang++, or $CXX); --kernels reference needs none"
        )
    path = cache_root() / "kernels" / f"{_key(cxx)}.so"
    if not path.exists():
        _compile(cxx, path)
    return ctypes.CDLL(str(path))


def _compile(cxx: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log.info("compiling native kernels into %s", path)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        made = Path(work, "kernels.so")
        command = [cxx, *FLAGS, "-o", str(made), str(SOURCES / "decoder.cpp")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
            raise CapacityError(f"native kernels: {cxx} failed: {said[0]}; --kernels reference needs no compiler")
        os.replace(made, path)  # whole or not at all, also beside another process that does the same


@functools.cache
def available() -> bool:
    """Whether native kernels can be used here; why not is logged once."""
    try:
        library()
    except CapacityError as error:
        log.warning("%s: falling back to the reference kernels, which are slower", error)
        return False
    return True
