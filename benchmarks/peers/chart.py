"""Tokens/s against K, a line per engine, a panel per shape. Knows: matplotlib (extra [bench]). Does not know: JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Lines = Mapping[str, Mapping[int, float]]
"""By engine: tokens/s by K."""

COLOURS = {"draftline": "#c0392b", "openvino": "#2471a3", "llamacpp": "#7d6608", "vllm": "#6c3483", "hf": "#7b7d7d"}
TITLES = {"135m": "SmolLM2-135M's shape", "0.5b": "Qwen2.5-0.5B's shape"}


def draw(panels: Mapping[str, Lines], labels: Mapping[str, str], out: Path) -> None:
    """Write the PNG. Raises SystemExit where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("matplotlib is not installed; pip install draftline[bench]") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.2 * len(panels), 4), squeeze=False, layout="constrained")
    for axis, (shape, lines) in zip(axes[0], panels.items(), strict=True):
        for engine, points in lines.items():
            ours = engine == "draftline"
            axis.plot(
                list(points),
                list(points.values()),
                marker="o",
                markersize=5 if ours else 3.5,
                linewidth=2.4 if ours else 1.4,
                color=COLOURS.get(engine),
                label=labels.get(engine, engine),
                zorder=3 if ours else 2,
            )
        axis.set_title(TITLES.get(shape, shape), fontsize=11)
        axis.set_xlabel("K, drafts per step")
        axis.set_ylabel("tokens/s")
        axis.set_xticks(sorted({k for points in lines.values() for k in points}))
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False, fontsize=9)
    figure.savefig(out, dpi=130)
    pyplot.close(figure)
