"""``pipeline-bench``: flags in, a table, JSON and a chart out.

Knows: flags and exit codes (0 done, 1 a request failed, 2 bad input or no server). Does not know: HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftline.graph.errors import DraftlineError, UsageError

from ..flags import Parser, number, say
from ..prompts import from_file
from .chart import draw
from .client import Client
from .load import closed_loop, figures, open_loop

PROG = "pipeline-bench"
PROMPTS = (
    "def read_lines(path):",
    "class Stack:\n    def __init__(self):",
    "import os\nimport sys\n\n\ndef main():",
    "def fibonacci(n):\n    if n < 2:",
    "# Sort a list of numbers.\ndef sort(numbers):",
    "The capital of France is",
    "Once upon a time, there was",
    "Write a function that counts the words of a file.",
)
"""Sent round and round where no file is given."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = Parser(prog=PROG, description="Put load on a server and measure it from outside.", allow_abbrev=False)
    p.add_argument("--url", default="http://127.0.0.1:8000", metavar="URL", help="the server, without /v1")
    p.add_argument("--model", metavar="NAME", help="its name there; the server's first one if not given")
    p.add_argument("--api-key", metavar="KEY", help="or the environment variable DRAFTLINE_API_KEY")
    p.add_argument("--rate", action="append", default=[], metavar="R", help="requests per second; may be repeated")
    p.add_argument("--concurrency", action="append", default=[], metavar="N", help="clients at once; may be repeated")
    p.add_argument("--depth", action="append", default=[], metavar="K", help="num_speculative_tokens; may be repeated")
    p.add_argument("--requests", default="64", metavar="N", help="of each run")
    p.add_argument("--max-tokens", default="64", metavar="N", help="of each answer")
    p.add_argument("--temperature", default="0", metavar="T", help="0: greedy")
    p.add_argument("--ignore-eos", action="store_true", help="answers of --max-tokens, whatever comes")
    p.add_argument("--prompts", type=Path, metavar="F.jsonl", help='one {"prompt": "…"} per line')
    p.add_argument("--seed", default="0", metavar="N", help="of arrivals and of sampling")
    p.add_argument("--timeout", default="600", metavar="SECONDS", help="until a server that is silent counts as gone")
    p.add_argument("--json", type=Path, metavar="OUT.json", help="all figures")
    p.add_argument("--chart", type=Path, metavar="OUT.png", help="latencies and throughput by load")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    try:
        return bench(parser().parse_args(argv))
    except DraftlineError as error:
        say(f"{PROG}: error: {error}")
        return 2
    except KeyboardInterrupt:
        say(f"{PROG}: interrupted")
        return 130


def bench(args: argparse.Namespace) -> int:
    """The command after parsing. Raises DraftlineError."""
    if args.rate and args.concurrency:
        raise UsageError("--rate sends whatever still runs and --concurrency waits for answers; give one of them")
    loads: list[tuple[float | None, int | None]] = [(_positive("--rate", r), None) for r in args.rate]
    loads += [(None, number("--concurrency", n, 1)) for n in args.concurrency or ([] if loads else ["4"])]
    depths: list[int | None] = [number("--depth", k, 0) for k in args.depth]
    runs = asyncio.run(_all(args, loads, depths or [None]))
    _show(runs)
    if args.json is not None:
        try:
            args.json.write_text(json.dumps({"url": args.url, "runs": runs}, indent=2) + "\n", "utf-8")
        except OSError as error:
            raise UsageError(f"--json {args.json}: cannot be written: {error}") from None
    if args.chart is not None:
        draw(runs, args.chart)
    for message in sorted({error for run in runs for error in run["errors"]}):
        say(f"{PROG}: error: {message}")
    return 1 if any(run["failed"] for run in runs) else 0


async def _all(
    args: argparse.Namespace, loads: Sequence[tuple[float | None, int | None]], depths: Sequence[int | None]
) -> list[dict[str, Any]]:
    bodies, seed, out = _bodies(args), number("--seed", args.seed, 0), []
    key = args.api_key or os.environ.get("DRAFTLINE_API_KEY")
    async with Client(args.url, key, _positive("--timeout", args.timeout)) as client:
        for depth in depths:
            own = [{**b, **({} if depth is None else {"num_speculative_tokens": depth})} for b in bodies]
            for rate, clients in loads:
                before = await client.counters()
                if rate is not None:
                    samples = await open_loop(client, own, rate, seed)
                else:
                    samples = await closed_loop(client, own, clients or 1)
                found = figures(samples, before, await client.counters())
                out.append({"rate": rate, "concurrency": clients, "depth": depth, **found})
    return out


def _bodies(args: argparse.Namespace) -> list[dict[str, Any]]:
    prompts = [p.text for p in from_file(args.prompts)] if args.prompts else list(PROMPTS)
    shared: dict[str, Any] = {
        "max_tokens": number("--max-tokens", args.max_tokens, 1),
        "temperature": _positive("--temperature", args.temperature, zero=True),
        **({"ignore_eos": True} if args.ignore_eos else {}),
        **({"model": args.model} if args.model else {}),
    }
    count, seed = number("--requests", args.requests, 1), number("--seed", args.seed, 0)
    return [{"prompt": prompts[i % len(prompts)], "seed": seed + i, **shared} for i in range(count)]


def _positive(flag: str, text: str, zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0 < value < 1e6 or (zero and value == 0)):
        raise UsageError(f"{flag} is {text!r}; a number {'of 0 or more' if zero else 'above 0'} is wanted")
    return value


def _show(runs: Sequence[dict[str, Any]]) -> None:
    """One line per run, on stdout."""
    times = [(name, p) for name in ("ttft", "itl", "e2e") for p in ("p50", "p99")]
    rows = [["load", "K", "requests", "failed", "tokens/s", "tokens/step", *(f"{n} {p} ms" for n, p in times)]]
    for run in runs:
        load = f"{run['rate']:g}/s" if run["rate"] is not None else f"{run['concurrency']} clients"
        cells = [load, *(run[name] for name in ("depth", "requests", "failed", "tokens_per_second", "tokens_per_step"))]
        cells += [run[f"{name}_ms"][p] for name, p in times]
        rows.append(["–" if cell is None else str(cell) for cell in cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
