"""What a group of workers is started with: the same for every worker of every epoch.

Knows: limits, where the model comes from, which stages have to travel. Does not know: processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftline.compiler.plan import Plan
from draftline.graph.errors import PlanError
from draftline.stages.registry import BUILTIN

from ..deployment import Lookup, Sizes
from ..threads import threads_for
from . import ship
from .boot import Boot
from .cores import available, share
from .ship import Luggage


@dataclass(frozen=True)
class Limits:
    """Seconds and counts. ``start_timeout``: until all workers are ready. ``grace``: between asking, SIGTERM and
    SIGKILL. ``max_restarts``: in a row, without a call that succeeded in between; the first comes after ``backoff``,
    each further one after twice the time, at most ``max_backoff``. ``heartbeat``: between signs of life of an idle
    worker. How long a stage may run is the plan's to say."""

    start_timeout: float = 120.0
    grace: float = 0.5
    max_restarts: int = 6
    backoff: float = 0.05
    max_backoff: float = 5.0
    heartbeat: float = 1.0


@dataclass(frozen=True)
class Launch:
    """``model``: name or folder; ``mtp`` and ``draft_model``: of an MTP head and of a draft model, or empty. ``load``:
    makes the models in place of reading them (``sizes`` → Loaded). ``transport``: ``ipc``, or ``tcp://HOST``, which
    needs ``curve_keys``. ``directory``: where the run directory is made; None: the system's place for temporary files.
    ``threads``: of each worker; 0: by the ``nbytes`` of the model's weights, see ``threads.py``."""

    model: str
    sizes: Sizes
    lookup: Lookup
    limits: Limits = Limits()
    load: Callable[..., Any] | None = None
    trace: bool = False
    cores: tuple[int, ...] = field(default_factory=lambda: tuple(available()))
    threads: int = 0
    nbytes: int = 0
    mtp: str = ""
    draft_model: str = ""
    directory: Path | None = None
    transport: str = "ipc"
    curve_keys: Path | None = None
    max_frame: int = 2**30
    """Bytes of the largest raw tensor frame; they only travel over tcp."""

    @property
    def shares_memory(self) -> bool:
        """Whether the arena is one memory for all; else tensors travel as raw frames."""
        return self.transport == "ipc"


def devices_of(plans: Sequence[Plan]) -> list[str]:
    """All devices of the plans, the widest plan's first, so that the numbers of workers are the same for every K."""
    widest = max(plans, key=lambda plan: len(plan.workers))
    return list(dict.fromkeys(w.device for plan in (widest, *plans) for w in plan.workers))


def uses_of(plans: Sequence[Plan], device: str, lookup: Lookup) -> list[str]:
    """The models that the stages on a device use."""
    runs = (run for plan in plans for s in plan.segments if s.device == device for run in s.runs)
    return sorted({model for run in runs for model in lookup(run.stage).signature.uses})


def luggage_of(plans: Sequence[Plan], launch: Launch) -> Luggage:
    """Stage classes that a worker cannot find by name: neither built in nor ``package.module:Class``."""
    names = {run.stage for plan in plans for segment in plan.segments for run in segment.runs}
    private = {n: launch.lookup(n) for n in sorted(names) if n not in BUILTIN and (":" not in n or "__main__:" in n)}
    replaced = {n: launch.lookup(n) for n in names & set(BUILTIN) if launch.lookup(n) is not BUILTIN[n]}
    return Luggage({**private, **replaced}, launch.load)


@dataclass(frozen=True)
class Crew:
    """What all workers of a group have in common, and what each has of its own, by number."""

    devices: tuple[str, ...]
    plans: tuple[str, ...]
    uses: tuple[tuple[str, ...], ...]
    cores: tuple[tuple[int, ...], ...]
    luggage: bytes

    @classmethod
    def of(cls, plans: Sequence[Plan], launch: Launch) -> Crew:
        """The workers that ``plans`` need. Raises PlanError for a device that none can own, UsageError for a stage
        that cannot travel."""
        devices = devices_of(plans)
        check_devices(devices)
        return cls(
            tuple(devices),
            tuple(plan.to_json() for plan in plans),
            tuple(tuple(uses_of(plans, device, launch.lookup)) for device in devices),
            tuple(tuple(part) for part in share(list(launch.cores), len(devices))),
            ship.pack(luggage_of(plans, launch)),
        )

    def boot(self, launch: Launch, n: int, **rest: Any) -> Boot:
        """The boot record of worker ``n``."""
        return Boot(
            index=n,
            device=self.devices[n],
            devices=list(self.devices),
            plans=list(self.plans),
            trace=launch.trace,
            shares_memory=launch.shares_memory,
            max_frame=launch.max_frame if not launch.shares_memory else 0,
            model=launch.model,
            mtp=launch.mtp,
            draft_model=launch.draft_model,
            sizes=launch.sizes,
            uses=list(self.uses[n]),
            cores=list(self.cores[n]),
            threads=threads_for(launch.threads, launch.nbytes, len(self.cores[n])),
            path=[p or os.getcwd() for p in sys.path],
            heartbeat=launch.limits.heartbeat,
            **rest,
        )


def check_devices(devices: Sequence[str]) -> None:
    """Raises PlanError for a device that no worker of this version can own."""
    for device in devices:
        if not device.startswith("cpu"):
            raise PlanError(f"placement on {device!r}: workers of this version own CPU devices (cpu:0, cpu:1, …)")
