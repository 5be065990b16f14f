"""Compare the last saved benchmark run with the one before, or any two files: medians and their ratio.

    python -m benchmarks.compare [NEW.json [OLD.json]]

Machines are noisy: a ratio is marked only where it leaves the interquartile ranges of both runs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

SAVED = Path(".benchmarks")


@dataclass(frozen=True)
class Timing:
    """Seconds of one benchmark."""

    median: float
    low: float
    high: float


def read(path: Path) -> dict[str, Timing]:
    """Timings by benchmark name."""
    rows = json.loads(path.read_text("utf-8"))["benchmarks"]
    return {b["fullname"]: Timing(b["stats"]["median"], b["stats"]["q1"], b["stats"]["q3"]) for b in rows}


def saved() -> list[Path]:
    """Saved runs, oldest first."""
    return sorted(SAVED.glob("*/*.json"), key=lambda p: p.stat().st_mtime)


def verdict(new: Timing, old: Timing) -> str:
    """``faster`` or ``slower`` where the middle halves of the two runs do not overlap."""
    if new.high < old.low:
        return "faster"
    return "slower" if new.low > old.high else ""


def main(argv: list[str]) -> int:
    runs = [Path(a) for a in argv]
    if not runs:
        runs = saved()[-2:][::-1]
    if len(runs) == 1 and argv:
        runs.append(next((p for p in reversed(saved()) if p.resolve() != runs[0].resolve()), runs[0]))
    if len(runs) < 2:
        print("nothing to compare: run `make bench` twice first", file=sys.stderr)
        return 2
    new, old = read(runs[0]), read(runs[1])
    print(f"{runs[0].name} against {runs[1].name}")
    table = Table(box=None)
    for name in ("benchmark", "old", "new", "new/old", ""):
        table.add_column(name, justify="left" if name == "benchmark" else "right")
    for name, now in new.items():
        before = old.get(name)
        old_text = "new" if before is None else f"{before.median * 1e6:.1f} us"
        ratio = "" if before is None else f"{now.median / before.median:.2f}"
        mark = "" if before is None else verdict(now, before)
        table.add_row(escape(name.partition("/")[2]), old_text, f"{now.median * 1e6:.1f} us", ratio, mark)
    Console(width=140).print(table, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
