"""The plan cache: one JSON file per plan, named by its key, and a report of why a plan was not found.

Knows: keys, files, what changed since the nearest cached plan. Does not know: how a plan is compiled.
A file that cannot be read is never an error: the plan is compiled again and the report says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftline.compiler.compile import Dump, compile_deployment, components, plan_key
from draftline.compiler.core import Deployment, Lookup
from draftline.compiler.costs import DEFAULT_COSTS, CostTable
from draftline.compiler.plan import Plan
from draftline.graph.core import Graph
from draftline.graph.errors import PlanError
from draftline.graph.verify import verify
from draftline.stages.models.places import cache_root

SCAN_BYTES = 4 * 2**20
"""Size of the largest cached plan that is looked at to say what changed."""
SCAN_LIMIT = 256
"""How many cached plans, newest first, are compared to find out what changed."""


@dataclass(frozen=True)
class CacheReport:
    """``reason`` is one line for people. ``changed`` names the components that differ from the nearest cached
    plan (``K``, ``graph``, ``cost table``, ``version of torch``, …); empty on a hit or in an empty cache."""

    hit: bool
    reason: str
    key: str
    path: Path | None = None
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"plan cache {'hit' if self.hit else 'miss'}: {self.reason}"


def default_directory() -> Path:
    """Return the directory that is used unless told otherwise: ``$XDG_CACHE_HOME/draftline/plans``."""
    return cache_root() / "plans"


def lookup_or_compile(
    graph: Graph,
    *,
    directory: Path | None,
    lookup: Lookup,
    costs: CostTable = DEFAULT_COSTS,
    dump: Dump | None = None,
    **numbers: Any,
) -> tuple[Plan, CacheReport]:
    """Return the cached plan, or compile it and store it; ``directory`` None means no cache.

    ``numbers`` are those of ``compile_graph``: K, tile, slots, and so on. ``dump`` asks to see the passes, so
    it always compiles. Raises GraphError and PlanError as ``compile_graph`` does, never an error of the file
    system.
    """
    deployment = Deployment.of(**numbers)
    verify(graph, lookup)
    parts = components(graph, deployment, lookup, costs)
    key = plan_key(parts)
    path = None if directory is None else directory / f"{key}.json"
    reason = "the cache is off"
    changed: tuple[str, ...] = ()
    if directory is not None and path is not None:
        if dump is not None:
            reason = "compiled to show the passes"
        else:
            try:
                return _load(path, key), CacheReport(True, f"{path}", key, path)
            except FileNotFoundError:
                reason, changed = _why_missing(directory, parts)
            except (OSError, ValueError, PlanError) as error:
                reason = f"{path} is damaged and was compiled again ({error})"
    plan = compile_deployment(graph, deployment, lookup, costs, dump)
    if path is not None:
        try:
            _store(path, plan, parts)
        except OSError as error:
            return plan, CacheReport(False, f"{reason}; not stored: {error}", key, None, changed)
    return plan, CacheReport(False, reason, key, path, changed)


def _load(path: Path, key: str) -> Plan:
    """Return the plan in ``path``. Raises OSError, ValueError or PlanError if it is not what was stored."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not {"components", "digest", "plan"} <= content.keys():
        raise ValueError("not a cached plan")
    plan = Plan.from_json(json.dumps(content["plan"]))
    # The plan was verified before it was stored; the digest says that it is still the same.
    if plan.key != key or content["digest"] != _digest(plan):
        raise ValueError("its content is not what was stored")
    return plan


def _store(path: Path, plan: Plan, parts: Mapping[str, str]) -> None:
    """Write the file whole or not at all. Raises OSError."""
    content = {"components": dict(parts), "digest": _digest(plan), "plan": json.loads(plan.to_json())}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _why_missing(directory: Path, parts: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return why no plan of this key is there: what differs from the cached plan that differs least."""
    best: tuple[str, ...] | None = None
    before: dict[str, str] = {}
    for known in _cached_components(directory):
        differs = tuple(n for n in (*parts, *(k for k in known if k not in parts)) if parts.get(n) != known.get(n))
        if differs and (best is None or len(differs) < len(best)):
            best, before = differs, known
    if best is None:
        return "no plan is cached yet", ()
    said = [_change(name, before.get(name), parts.get(name)) for name in best]
    return " and ".join(said), best


def _change(name: str, before: str | None, after: str | None) -> str:
    values = [value for value in (before, after) if value is not None]
    if len(values) == 2 and all(len(value) <= 24 for value in values):
        return f"{name} changed from {before} to {after}"
    return f"{name} changed"


def _cached_components(directory: Path) -> list[dict[str, str]]:
    """Return the components of the newest cached plans; what cannot be read is left out."""

    def age(path: Path) -> float:
        try:
            return -path.stat().st_mtime
        except OSError:
            return 0.0

    found = []
    for path in sorted(directory.glob("*.json"), key=age)[:SCAN_LIMIT]:
        try:
            if path.stat().st_size > SCAN_BYTES:
                continue  # to say why is not worth seconds
            known = json.loads(path.read_text(encoding="utf-8"))["components"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(known, dict):
            found.append(known)
    return found


def _digest(plan: Plan) -> str:
    return hashlib.sha256(plan.to_json().encode()).hexdigest()
