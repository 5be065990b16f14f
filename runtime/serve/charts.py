"""Charts of the status page as inline SVG. Knows: numbers, coordinates. Does not know: what they mean.

Colours are the page's CSS variables, so a chart follows its dark and light themes.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 560, 200
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 14, 30


def bars(shares: Sequence[float], label: str) -> str:
    """One bar per share, 0 … 1, with its percentage; the first is position 1."""
    room, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = room / max(len(shares), 1)
    width = min(step * 0.62, 64)
    out = [_scale([0, 0.25, 0.5, 0.75, 1], 1.0, "{:.0%}")]
    for i, share in enumerate(shares):
        x, tall = LEFT + step * (i + 0.5) - width / 2, height * share
        y = TOP + height - tall
        out.append(f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}" rx="4"/>')
        out.append(_text(x + width / 2, max(y - 5, 11), f"{share:.0%}", "value"))
        out.append(_text(x + width / 2, HEIGHT - 10, f"{i + 1}", "tick"))
    return _svg(out, label)


def line(points: Sequence[tuple[float, float]], seconds: float, label: str) -> str:
    """Values over time: (seconds ago, value), oldest first."""
    room, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    top = _ceiling(max((value for _, value in points), default=1.0))
    out = [_scale([top * i / 4 for i in range(5)] if top > 4 else list(range(int(top) + 1)), top, "{:g}")]
    for ago in (seconds, seconds / 2, 0):
        x = LEFT + room * (1 - ago / seconds)
        out.append(_text(x, HEIGHT - 10, f"{ago:g} s ago" if ago else "now", "tick", "end" if not ago else "middle"))
    places = [(LEFT + room * (1 - ago / seconds), TOP + height * (1 - value / top)) for ago, value in points]
    if places:
        path, (x, y), floor = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places), places[-1], TOP + height
        out.append(f'<path class="area" d="{path}L{x:.1f},{floor}L{places[0][0]:.1f},{floor}Z"/>')
        out.append(f'<path class="line" d="{path}"/>')
        out.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
    return _svg(out, label)


def _ceiling(value: float) -> float:
    """A round number of ``value`` or more for the top of a scale."""
    for round_number in (1, 2, 3, 4, 8, 12, 16, 20, 40, 80, 100, 200, 400, 800):
        if value <= round_number:
            return float(round_number)
    digits = 10 ** (len(str(int(value))) - 1)
    return float(-(-value // digits) * digits)


def _scale(marks: Sequence[float], top: float, form: str) -> str:
    height, out = HEIGHT - TOP - BOTTOM, []
    for mark in marks:
        y = TOP + height * (1 - mark / top)
        out.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        out.append(_text(LEFT - 7, y + 4, form.format(mark), "tick", "end"))
    return "".join(out)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], label: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return f'{head} aria-label="{escape(label)}">{"".join(parts)}</svg>'
