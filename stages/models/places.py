"""Where models lie: a folder, a name that comes with the package, one that was fetched, one in the hub's cache.

Knows: folders and names. Does not know: what is in a model. Nothing here speaks to a network.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from draftline.graph.errors import ModelError, nearest

PACKAGED = Path(__file__).parent.parent / "weights"
PACKAGED_HEADS = PACKAGED / "heads"
"""MTP heads that come with the package, by the name of their target."""


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/draftline``, or ``~/.cache/draftline``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG standard says that a relative path is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "draftline"


def fetched_root() -> Path:
    """Where ``draftline-fetch`` puts models, one folder each."""
    return cache_root() / "models"


def hub_root() -> Path:
    """The Hugging Face hub's cache on this machine: ``HF_HUB_CACHE``, ``HF_HOME/hub``, or the default."""
    told = os.environ.get("HF_HUB_CACHE")
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(told) if told else Path(home) / "hub"


def packaged_names() -> list[str]:
    """Models that come with the package."""
    return sorted(p.parent.name for p in PACKAGED.glob("*/config.json"))


def fetched_names() -> list[str]:
    """Models that were fetched."""
    return sorted(p.parent.name for p in fetched_root().glob("*/config.json") if not p.parent.name.startswith("."))


def _snapshots(folder: Path) -> Iterator[Path]:
    """The snapshots of a hub cache folder ``models--org--name``: the one of ``refs/main`` first, then the newest."""
    with contextlib.suppress(OSError):
        yield folder / "snapshots" / (folder / "refs" / "main").read_text("utf-8").strip()
    yield from sorted((folder / "snapshots").glob("*"), key=lambda p: p.stat().st_mtime, reverse=True)


def resolve(name: str) -> Path:
    """The folder with config.json that ``name`` means: a folder, a folder of the hub's cache, a packaged or fetched
    model, or ``org/name`` as the hub's cache on this machine has it. Raises ModelError with the nearest names."""
    places = [Path(name), *_snapshots(Path(name)), PACKAGED / name, fetched_root() / name]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        places += _snapshots(hub_root() / ("models--" + name.replace("/", "--")))
    for path in places:
        if (path / "config.json").is_file():
            return path
    if Path(name).is_dir():
        raise ModelError(f"model {name!r}: the folder has no config.json")
    if name == "smollm2":
        raise ModelError("model 'smollm2' is not on this machine yet; run: draftline-fetch smollm2")
    raise ModelError(
        f"model {name!r}: no such folder, and no packaged or fetched model of that name"
        f"{nearest(name, [*packaged_names(), *fetched_names(), 'smollm2'])}"
    )


def resolve_head(name: str) -> Path:
    """The folder with config.json of an MTP head: a folder, or the name of a packaged head. Raises ModelError."""
    for path in (Path(name), PACKAGED_HEADS / name):
        if (path / "config.json").is_file():
            return path
    if Path(name).is_dir():
        raise ModelError(f"MTP head {name!r}: the folder has no config.json; draftline-train-mtp writes one")
    known = sorted(p.parent.name for p in PACKAGED_HEADS.glob("*/config.json"))
    raise ModelError(f"MTP head {name!r}: no such folder, and no packaged head of that name{nearest(name, known)}")
