"""Race draftline against other engines: every heat interleaved A B A B, results as JSON.

Knows: order, resuming, what a record holds. Does not know: statistics (``report.py``), engines (``entrants.py``).

    python -m benchmarks.peers.venvs                      # once: environments and builds
    python -m benchmarks.peers.race known real            # both races; adds what is missing to the JSON
    python -m benchmarks.peers.race known --engines draftline openvino --models 135m --depths 0 4 --again
    python -m benchmarks.peers.report                     # docs/performance.md and its charts

All entrants of a heat are loaded before it starts; while one runs, the processes of the others are stopped, so that
threads that spin disturb nobody. A call is timed as a whole, and a call for one token gives the prefill's share.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import prompts
from .bandwidth import read_bandwidth
from .entrants import DEPTHS, PEERS, THREADS, Entrant, Heat, entrants, heats, launch
from .places import Work, default_root
from .process import EngineError, EngineProcess
from .shapes import SHAPES

REAL = "smollm2"
RESULTS = Path(__file__).parent / "results.json"


@dataclass(frozen=True)
class Task:
    """Prompts that are decoded in one call, and how often."""

    suite: str
    prompts: Sequence[Sequence[int]]
    new_tokens: int
    rounds: int


def whole_steps(k: int, least: int) -> int:
    """New tokens so that the ones after the first are whole steps of K+1, at least ``least`` of them."""
    return 1 + (k + 1) * -(-least // (k + 1))


def interleave(
    running: Mapping[str, EngineProcess], tasks: Iterable[Task], fail: Callable[[str, str], None]
) -> list[dict[str, Any]]:
    """Every task, round by round, each engine in turn: one record per engine and round. An engine that fails is
    reported, closed and left out from there on."""
    alive, records = dict(running), []
    for engine in alive.values():
        engine.stop()
    for number, task in enumerate(tasks):
        for at in range(task.rounds):
            for name, engine in list(alive.items()):
                try:
                    engine.ask(task.prompts, 1)  # caches are cold after the others' turns
                    first = engine.ask(task.prompts, 1)
                    whole = engine.ask(task.prompts, task.new_tokens)
                except EngineError as error:
                    fail(name, str(error))
                    alive.pop(name).close()
                    continue
                engine.stop()
                records.append(
                    {
                        "entrant": name,
                        "suite": task.suite,
                        "task": number,
                        "round": at,
                        "prompts": len(task.prompts),
                        "new": sum(map(len, whole.tokens)),
                        "first_seconds": first.seconds,
                        "seconds": whole.seconds,
                        "length": whole.length,
                        "tokens": whole.tokens if at == 0 else None,
                    }
                )
    return records


def tasks_of(heat: Heat, args: argparse.Namespace) -> list[Task]:
    """What a heat decodes."""
    if heat.kind == "known":
        assert heat.k is not None
        return [Task("known", [prompts.known()], whole_steps(heat.k, args.new), args.rounds)]
    count = args.prompts if heat.batch == 1 else heat.batch
    out = []
    for suite, found in prompts.real(heat.model, count).items():
        if heat.batch == 1:
            out += [Task(suite, [p], args.new + 1, 1) for p in found]
        else:
            out.append(Task(suite, [found[i % len(found)] for i in range(heat.batch)], args.new + 1, 2))
    return out


def run(heat: Heat, takers: Sequence[Entrant], work: Work, args: argparse.Namespace) -> dict[str, Any]:
    """The heat's result: records, and per entrant its options, versions, memory or what kept it from running."""
    about: dict[str, dict[str, Any]] = {e.name: {"k": e.k, "drafter": e.drafter, "engine": e.engine} for e in takers}

    def fail(name: str, why: str) -> None:
        about[name]["error"] = why
        print(f"  {name}: {why}", flush=True)

    tasks, running = tasks_of(heat, args), {}
    with ExitStack() as stack:
        for entrant in takers:
            started = time.monotonic()
            try:
                command, options = launch(work, heat, entrant)
                log = work.log(f"{heat.name}-{entrant.name}")
                limit = int(args.memory * 2**30)
                engine = EngineProcess(command, options, log, memory_limit=limit, start_timeout=args.start_timeout)
                stack.callback(engine.close)
                engine.ask(tasks[0].prompts, 17)  # warm-up
                engine.stop()
            except (EngineError, FileNotFoundError, SystemExit) as error:
                fail(entrant.name, str(error))
                continue
            running[entrant.name] = engine
            about[entrant.name] |= {"versions": engine.versions, "start_seconds": time.monotonic() - started}
        records = interleave(running, tasks, fail)
        for name, engine in running.items():
            about[name]["peak_bytes"] = engine.peak
    return {"heat": asdict(heat), "entrants": about, "records": records}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info = dict(
        (part.strip() for part in line.split(":", 1))
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        if ":" in line
    )
    flags = [f for f in info.get("flags", "").split() if f.startswith(("avx512_bf16", "avx512f", "amx", "avx2"))]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    out = {"cpu": info.get("model name", ""), "cores": os.cpu_count(), "flags": flags, "memory_bytes": memory}
    return out | {"kernel": platform.release(), "threads": THREADS, "load_before": os.getloadavg()[0]}


def save(path: Path, results: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results), "utf-8")
    part.rename(path)


def main(argv: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kinds", nargs="+", choices=["known", "real"])
    p.add_argument("--engines", nargs="+", choices=["draftline", *PEERS], default=["draftline", *PEERS])
    p.add_argument("--models", nargs="+", choices=[*SHAPES], default=[*SHAPES], help="shapes of the known race")
    p.add_argument("--depths", nargs="+", type=int, default=[*DEPTHS], help="K of the known race")
    p.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="of the real race")
    p.add_argument("--rounds", type=int, default=5, help="of each heat of the known race")
    p.add_argument("--prompts", type=int, default=4, help="per suite of the real race at batch 1")
    p.add_argument("--new", type=int, default=64, help="new tokens after the first, at least")
    p.add_argument("--mtp-k", type=int, default=3)
    p.add_argument("--ngram-k", type=int, default=4)
    p.add_argument("--memory", type=float, default=8, help="GiB above which an engine is killed")
    p.add_argument("--start-timeout", type=float, default=300, help="seconds")
    p.add_argument("--vllm-compile", action="store_true", help="vLLM's compiled graphs in place of eager calls")
    p.add_argument("--again", action="store_true", help="measure anew what the JSON has already")
    p.add_argument("--work", type=Path, default=default_root())
    p.add_argument("--out", type=Path, default=RESULTS)
    args = p.parse_args(argv)
    work, out = Work(args.work), args.out
    results = json.loads(out.read_text("utf-8")) if out.exists() else {"heats": {}}
    results["machine"] = machine()
    # A slow moment of a shared machine is no bound: the best of all starts counts.
    results["bandwidth"] = max(read_bandwidth(THREADS), results.get("bandwidth") or 0.0)
    for kind in args.kinds:
        for heat in heats(kind, args.models if kind == "known" else [REAL], args.depths, args.batches):
            old = results["heats"].get(heat.name, {"entrants": {}, "records": []})
            takers = entrants(heat, args.engines, args.mtp_k, args.ngram_k, args.vllm_compile)
            if not args.again:
                takers = [e for e in takers if "peak_bytes" not in old["entrants"].get(e.name, {})]
            if not takers:
                continue
            print(heat.name, *(e.name for e in takers), flush=True)
            new = run(heat, takers, work, args)
            kept = [r for r in old["records"] if r["entrant"] not in new["entrants"]]
            new["records"], new["entrants"] = kept + new["records"], old["entrants"] | new["entrants"]
            results["heats"][heat.name] = new
            save(out, results)
    print(out)


if __name__ == "__main__":
    main()
