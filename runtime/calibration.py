"""Measured costs on disk: what ``calibrate.py`` found out, by machine and model.

Knows: what a measurement depends on, files. Does not know: how anything is measured, how a cost is used.

One file per machine, model and way to compute; in it one record per deployment size. A run takes the record of its own
``max_num_seqs``, else that of the next larger one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from draftline.compiler.costs import DEFAULT_COSTS, CostTable
from draftline.compiler.plan import CostEntry
from draftline.graph.errors import UsageError
from draftline.stages.models.core import ModelFiles
from draftline.stages.models.places import cache_root

from .adaptive import StepCost

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """Costs of one deployment size. ``entries``: microseconds of one call of a stage at a width. ``steps``: of whole
    decode steps, for depths 0 … ``k_max``."""

    max_num_seqs: int
    k_max: int
    entries: tuple[CostEntry, ...]
    steps: tuple[StepCost, ...]

    __pydantic_config__ = ConfigDict(extra="forbid")

    def table(self) -> CostTable:
        """The measured entries; a width that was not measured costs what the widest did, and a stage that was not
        measured what is assumed."""
        widest = {e.stage: replace(e, width=0) for e in sorted(self.entries, key=lambda e: e.width)}
        general = tuple(e for e in widest.values() if e not in self.entries)
        rest = tuple(e for e in DEFAULT_COSTS.entries if e.stage not in widest)
        return CostTable((*self.entries, *general, *rest), DEFAULT_COSTS.acceptance)


@dataclass(frozen=True)
class Measurements:
    """A file's content: ``of`` says in words what was measured, and is what the file is named by."""

    format: int
    of: dict[str, str]
    records: tuple[Record, ...]

    __pydantic_config__ = ConfigDict(extra="forbid")

    def best(self, max_num_seqs: int, k_max: int) -> Record | None:
        """The record for a deployment: its own size, else the next larger, else the largest; None if none is deep
        enough."""
        deep = sorted((r for r in self.records if r.k_max >= k_max), key=lambda r: r.max_num_seqs)
        return next((r for r in deep if r.max_num_seqs >= max_num_seqs), deep[-1] if deep else None)


_ADAPTER = TypeAdapter(Measurements)


def subject(files: ModelFiles, facts: Mapping[str, str]) -> dict[str, str]:
    """What a measurement is of, in words: machine and model, with what the caller adds (dtype, tile, …)."""
    parts = {"machine": machine(), "model": _fingerprint(files.folder)}
    for name, folder in (("mtp", files.mtp), ("draft model", files.draft_model)):
        if folder is not None:
            parts[name] = _fingerprint(folder)
    return {**parts, **facts}


def machine() -> str:
    """Processor and number of cores that this process may use."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux: the architecture's name has to do
    return f"{name} x {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}"


def _fingerprint(folder: Path) -> str:
    """A hash of config.json and of the weight files' names and sizes: other values cost the same."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def default_path(of: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/draftline/costs/<hash of what was measured>.json``."""
    key = hashlib.sha256(json.dumps(dict(of), sort_keys=True).encode()).hexdigest()[:24]
    return cache_root() / "costs" / f"{key}.json"


def stored(path: Path) -> Measurements | None:
    """What lies at a default path; None if nothing does, or nothing that can be read: it is measured again then."""
    try:
        return read(path)
    except UsageError:
        return None


def read(path: Path) -> Measurements:
    """A file of measurements. Raises UsageError that names the file and what is wrong with it."""
    try:
        found = _ADAPTER.validate_json(path.read_bytes(), strict=False)
    except OSError as error:
        raise UsageError(f"--costs {path}: cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(
            f"--costs {path}: {where}: {first['msg']}; a file that pipeline-run --calibrate wrote is wanted"
        ) from None
    if found.format != FORMAT:
        raise UsageError(f"--costs {path}: has format {found.format}, this version reads {FORMAT}; calibrate again")
    for record in found.records:
        try:
            record.table()
        except Exception as error:
            raise UsageError(f"--costs {path}: {error}") from None
        if any(not 0 < step.micros < float("inf") for step in record.steps):
            raise UsageError(f"--costs {path}: a step costs no finite time above 0; calibrate again")
    return found


def store(path: Path, of: Mapping[str, str], record: Record) -> None:
    """Add a record, in place of the one of its size; the file is written whole or not at all. Raises UsageError."""
    before = stored(path)
    kept = [] if before is None else [r for r in before.records if r.max_num_seqs != record.max_num_seqs]
    records = sorted([*kept, record], key=lambda r: r.max_num_seqs)
    content: dict[str, Any] = asdict(Measurements(FORMAT, dict(of), tuple(records)))
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise UsageError(f"the measured costs cannot be stored: {error}; set XDG_CACHE_HOME to a folder") from None
