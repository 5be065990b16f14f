"""Write the chart and the tables of docs/performance.md from the saved JSON.

Knows: files and which table stands at which mark. Does not know: figures.

    python -m benchmarks.peers.report [--results benchmarks/peers/results.json] [--page docs/performance.md]

The page's prose is written by hand; what stands between ``<!-- NAME -->`` and ``<!-- end -->`` is replaced.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import chart, tables
from .race import RESULTS
from .shapes import SHAPES

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def parts(results: tables.Results) -> dict[str, str]:
    """Every generated part of the page by the name of its mark."""
    out = {f"known {shape}": tables.speed_table(results, shape) for shape in SHAPES}
    out |= {f"real batch {batch}": tables.real_table(results, batch) for batch in (1, 8)}
    return out | {
        "setting": tables.setting(results),
        "lengths": tables.length_table(results),
        "efficiency": tables.efficiency_table(results),
        "streaming": tables.streaming_table(results),
        "memory": tables.memory_table(results),
    }


def fill(page: str, found: Mapping[str, str]) -> str:
    """The page with every part in its place. Raises SystemExit that names a mark without a part, or the reverse."""
    marks = re.findall(r"<!-- (?!end)([^>]+?) -->", page)
    if sorted(marks) != sorted(found):
        raise SystemExit(f"marks of the page: {sorted(marks)}; parts: {sorted(found)}")
    for name, text in found.items():
        pattern = rf"<!-- {re.escape(name)} -->\n.*?<!-- end -->"
        page, count = re.subn(pattern, lambda _, n=name, t=text: f"<!-- {n} -->\n{t}\n<!-- end -->", page, flags=re.S)
        if count != 1:
            raise SystemExit(f"mark {name!r} of the page has no <!-- end -->")
    return page


def main(argv: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--results", type=Path, default=RESULTS)
    p.add_argument("--page", type=Path, default=PAGE)
    args = p.parse_args(argv)
    if not args.results.exists():
        raise SystemExit(f"{args.results}: no such file; python -m benchmarks.peers.race known real writes it")
    results = json.loads(args.results.read_text("utf-8"))
    page = fill(args.page.read_text("utf-8"), parts(results))
    panels = {shape: found for shape in SHAPES if any((found := tables.lines(results, shape)).values())}
    if panels:
        chart.draw(panels, tables.LABELS, args.page.with_suffix(".png"))
    args.page.write_text(page, "utf-8")
    print(args.page)


if __name__ == "__main__":
    main()
