"""Where a step's time goes: in the models' calls, in the stages around them, in the engine, in the runtime.

Host time is all but the models' calls. Figures are medians over steps, in microseconds, batch 1 unless told otherwise;
for K above 0 the share is of a step at that K.

    python -m benchmarks.host_time [--model smollm2] [--dtype bf16] [--depths 0 1 3 7] [--requests 1] [--steps 60]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from draftline.runtime.deployment import load, models_of
from draftline.runtime.engine import Engine
from draftline.runtime.inline import InlineRuntime
from draftline.runtime.pipeline import prepare
from draftline.runtime.request import Request
from draftline.runtime.threads import threads_for, weight_bytes
from draftline.runtime.workers.cores import available
from draftline.stages.core import Call


@dataclass
class Clock:
    """Nanoseconds by kind, since the last ``take``."""

    spent: dict[str, int] = field(default_factory=dict)

    def timed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time is kept."""

        def run(*args: Any) -> Any:
            began = time.perf_counter_ns()
            result = function(*args)
            self.spent[kind] = self.spent.get(kind, 0) + time.perf_counter_ns() - began
            return result

        return run

    def take(self) -> dict[str, int]:
        taken, self.spent = self.spent, {}
        return taken


class Timed:
    """A target or drafter whose calls are timed."""

    def __init__(self, model: Any, clock: Clock) -> None:
        self._model = model
        self.forward = clock.timed("model", model.forward)
        self.greedy = clock.timed("model", model.greedy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def timed_lookup(lookup: Callable[[str], Any], clock: Clock) -> Callable[[str], Any]:
    """Stages whose calls are timed."""

    def found(name: str) -> Any:
        stage = lookup(name)

        def make(context: Any, **options: Any) -> Callable[[Call, Mapping[str, Any], Mapping[str, Any]], None]:
            return clock.timed("stages", stage(context, **options))

        make.signature = stage.signature  # type: ignore[attr-defined]
        return make

    return found


def measure(args: argparse.Namespace, k: int) -> dict[str, float]:
    """Median microseconds of a step at depth ``k`` by part."""
    wishes = {"model": args.model, "dtype": args.dtype, "num_speculative_tokens": k, "max_num_seqs": args.requests}
    p, clock = prepare(args.graph, **wishes), Clock()
    torch.set_num_threads(threads_for(0, weight_bytes(p.files.folder), len(available())))
    uses = models_of(p.graph, p.compiler.lookup) if k else ("target",)
    model = load(p.files, p.sizes, uses)
    drafter = None if model.drafter is None else Timed(model.drafter, clock)
    lookup = timed_lookup(p.compiler.lookup, clock)
    runtime = InlineRuntime(replace(model, target=Timed(model.target, clock), drafter=drafter), lookup)
    engine = Engine(p.graph, p.prefill, replace(p.compiler, lookup=lookup), runtime)
    runtime.start = clock.timed("runtime", runtime.start)  # type: ignore[method-assign]
    prompt = np.random.default_rng(0).integers(100, 1000, size=16)
    for n in range(args.requests):
        engine.add(n, Request(tuple(map(int, prompt + n)), 900, ignore_eos=True))
    engine.step()
    found: list[dict[str, int]] = []
    for _ in range(min(args.steps, 880 // (k + 1))):
        clock.take()
        began = time.perf_counter_ns()
        engine.step()
        found.append({"step": time.perf_counter_ns() - began, **clock.take()})
    mid = {part: statistics.median(f[part] for f in found[5:]) / 1000 for part in found[-1]}
    return {
        "step": mid["step"],
        "model": mid["model"],
        "stages": mid["stages"] - mid["model"],
        "runtime": mid["runtime"] - mid["stages"],
        "engine": mid["step"] - mid["runtime"],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print one line per depth."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="smollm2")
    p.add_argument("--graph", default="mtp.yaml")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--depths", nargs="+", type=int, default=[0, 1, 3, 7])
    p.add_argument("--requests", type=int, default=1)
    p.add_argument("--steps", type=int, default=60)
    args = p.parse_args(argv)
    table = Table(title=f"{args.model}, {args.graph}, {args.dtype}, {args.requests} requests: us per step", box=None)
    for name in ("K", "step", "models", "stages", "runtime", "engine", "host share"):
        table.add_column(name, justify="right")
    for k in args.depths:
        found = measure(args, k)
        share = 1 - found["model"] / found["step"]
        table.add_row(str(k), *(f"{v:.0f}" for v in found.values()), f"{share:.1%}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
