"""A benchmark's runs as a PNG. Knows: matplotlib, which is imported when it is needed. Does not know: requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftline.graph.errors import UsageError


def draw(runs: Sequence[dict[str, Any]], to: Path) -> None:
    """Latencies and throughput per load, a line per depth. Raises UsageError without matplotlib, or if ``to`` cannot be
    written."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise UsageError("--chart needs matplotlib: pip install 'draftline[bench]'") from None
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.8), layout="constrained")
    what = (("ttft_ms", "time to first token, ms"), ("itl_ms", "between chunks, ms"), ("e2e_ms", "whole request, ms"))
    unit = "requests/s offered" if runs and runs[0]["rate"] is not None else "clients"
    for depth in dict.fromkeys(run["depth"] for run in runs):
        own = [run for run in runs if run["depth"] == depth]
        loads = [run["rate"] if run["rate"] is not None else run["concurrency"] for run in own]
        label = "server's K" if depth is None else f"K={depth}"
        for axis, (name, title) in zip(axes, what, strict=False):
            (drawn,) = axis.plot(loads, [_or_nan(run[name]["p50"]) for run in own], marker="o", label=label)
            p99 = [_or_nan(run[name]["p99"]) for run in own]
            axis.plot(loads, p99, marker=".", linestyle=":", color=drawn.get_color())
            axis.set_title(f"{title} (p50, dotted p99)", fontsize=9)
        axes[3].plot(loads, [run["tokens_per_second"] for run in own], marker="o", label=label)
    axes[3].set_title("tokens per second", fontsize=9)
    for axis in axes:
        axis.set_xlabel(unit)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    try:
        figure.savefig(to, dpi=120, format="png")
    except OSError as error:
        raise UsageError(f"--chart {to}: cannot be written: {error}") from None
    finally:
        plt.close(figure)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
