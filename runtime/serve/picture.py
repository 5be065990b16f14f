"""The plan as a picture: a box per stage in the order of a step, as inline SVG.

Knows: plans, boxes, arrows. Does not know: graphs, HTML pages. Boxes of one device have one colour; a stack of boxes
is what runs once per wave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from draftline.compiler.plan import Plan, Segment, StageRun

WIDE, TALL, GAP, EDGE, TOP = 136, 66, 34, 16, 30


@dataclass(frozen=True)
class Box:
    """``title``: the stage; ``lines``: numbers below it; ``device``: where it runs."""

    title: str
    lines: tuple[str, ...]
    device: str
    waves: bool


def boxes(plan: Plan) -> list[Box]:
    """The stages of a step in order; calls of one node that follow one another are one box."""
    runs = [(segment, run) for segment in plan.segments for run in segment.runs]
    groups = groupby(runs, key=lambda one: (one[1].node, one[1].chunk, one[0].device))
    return [_box(plan, list(group)) for _, group in groups]


def _box(plan: Plan, group: Sequence[tuple[Segment, StageRun]]) -> Box:
    segment, run = group[0]
    title = run.node.rpartition(".")[2] + (f" ×{len(group)}" if len(group) > 1 else "")
    lines = [run.stage] if run.stage != title else []
    if segment.per_wave:
        most = plan.layout.waves_max
        lines = [f"{plan.layout.chosen}, {f'up to {most} waves' if most > 1 else 'one wave'}"]
    if run.width:
        lines.append(f"chunk {run.chunk}, columns {run.start}–{run.start + run.width - 1}")
    return Box(title, tuple(lines), segment.device, segment.per_wave)


def picture(plan: Plan) -> str:
    """The whole SVG. The dashed arrow: what a step commits is the next one's tail."""
    found = boxes(plan)
    devices = sorted({box.device for box in found})
    width = EDGE * 2 + len(found) * WIDE + (len(found) - 1) * GAP + 44
    height = TOP + TALL + 54
    middle, out = TOP + TALL / 2, [_MARKER]
    start = EDGE + 44
    out.append(f'<text class="tick" x="{EDGE}" y="{middle + 4}">tail</text>')
    out.append(_arrow(EDGE + 24, middle, start - 4, middle))
    for i, box in enumerate(found):
        x = start + i * (WIDE + GAP)
        if i:
            out.append(_arrow(x - GAP + 2, middle, x - 4, middle))
        kind = f"box device{devices.index(box.device) % 4}"
        if box.waves:
            out.append(_rect(kind + " behind", x + 5, TOP - 6))
        out.append(_rect(kind, x, TOP))
        out.append(_text(x, TOP + 23, box.title, "name"))
        for n, text in enumerate(box.lines):
            out.append(_text(x, TOP + 41 + 15 * n, text, "small"))
    end, low = start + len(found) * (WIDE + GAP) - GAP - WIDE / 2, TOP + TALL
    back = EDGE + 12
    bend = f"M{end},{low}v16q0,12 -12,12H{back + 12}q-12,0 -12,-12V{middle + 12}"
    out.append(f'<path class="back" marker-end="url(#tip)" d="{bend}"/>')
    says = f"plan {plan.name}, K={plan.num_speculative_tokens}, {plan.layout.chosen}, tile {plan.tile}"
    chunks = max(len(plan.layout.chunks), 1)
    says += f", {chunks} chunk{'s' * (chunks > 1)}, on {', '.join(devices)}"
    out.append(f'<text class="tick" x="{start}" y="{height - 6}">{escape(says)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    style = f"min-width:{width * 0.62:.0f}px;max-width:{width * 1.25:.0f}px;margin:auto"
    return f'{head} style="{style}" aria-label="the plan of a step">{"".join(out)}</svg>'


_MARKER = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="tip" d="M0,0L8,4L0,8Z"/></marker></defs>'
)


def _rect(kind: str, x: float, y: float) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{WIDE}" height="{TALL}" rx="10"/>'


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="arrow" marker-end="url(#tip)" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x + WIDE / 2}" y="{y}" text-anchor="middle">{escape(text)}</text>'
