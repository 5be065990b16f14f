"""The status page: one HTML document without anything from elsewhere.

Knows: what is worth looking at, HTML, CSS. Does not know: how numbers come about.

A script of three lines fetches the page again every two seconds; without scripts the browser reloads it. Nothing of any
prompt or answer is on it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from itertools import groupby
from statistics import mean

from .board import Board, Step
from .charts import bars, line
from .picture import picture
from .state import State

SECONDS = 60.0
"""How far back the charts look."""
_STYLE = """
:root{color-scheme:light dark;--bg:#f6f7fb;--card:#fff;--ink:#171a26;--dim:#687089;--line:#e3e6ef;--hue:#4f46e5;
--hue2:#0d9488;--hue3:#c2410c;--hue4:#a21caf;--ok:#0f9d58;--warn:#d97706;--bad:#dc2626}
@media (prefers-color-scheme:dark){:root{--bg:#0e1017;--card:#171a24;--ink:#eceef6;--dim:#8f97b0;--line:#272b3a;
--hue:#8b85ff;--hue2:#2dd4bf;--hue3:#fb923c;--hue4:#e879f9;--ok:#34d399;--warn:#fbbf24;--bad:#f87171}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 22px 40px}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:6px 14px;margin-bottom:20px}
h1{font-size:25px;letter-spacing:-.02em;margin:0}h1 span{color:var(--hue)}
h2{font-size:14px;font-weight:600;margin:0 0 10px}h2 small{color:var(--dim);font-weight:400;margin-left:6px}
.badge{padding:2px 11px;border-radius:99px;font-size:13px;font-weight:600;color:var(--c);
background:color-mix(in srgb,var(--c) 14%,transparent)}
.dim,footer{color:var(--dim)}header .dim:last-child{margin-left:auto}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:14px;margin-bottom:14px}
.card{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:16px 18px;min-width:0}
.tile b{display:block;font-size:28px;line-height:1.2;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.tile span{color:var(--dim);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:14px;margin-bottom:14px}
.scroll{overflow-x:auto}svg{display:block;width:100%;height:auto;font-family:inherit}
.grid{stroke:var(--line)}.tick{fill:var(--dim);font-size:12px}.value{fill:var(--ink);font-size:12px;font-weight:600}
.bar{fill:var(--hue)}.line{fill:none;stroke:var(--hue);stroke-width:2;stroke-linejoin:round}
.area{fill:var(--hue);opacity:.13}.dot{fill:var(--hue)}.steps .line{stroke:var(--hue2)}
.steps .area,.steps .dot{fill:var(--hue2)}.empty{color:var(--dim);padding:46px 0;text-align:center}
.box{fill:color-mix(in srgb,var(--d) 12%,var(--card));stroke:var(--d);stroke-width:1.5}.behind{opacity:.55}
.device0{--d:var(--hue)}.device1{--d:var(--hue2)}.device2{--d:var(--hue3)}.device3{--d:var(--hue4)}
.name{fill:var(--ink);font-size:14px;font-weight:600}.small{fill:var(--dim);font-size:10.5px}
.arrow{stroke:var(--dim);stroke-width:1.5}.tip{fill:var(--dim)}
.back{fill:none;stroke:var(--dim);stroke-width:1.5;stroke-dasharray:5 4}
footer{margin-top:20px;font-size:13px;display:flex;flex-wrap:wrap;gap:4px 18px}a{color:var(--hue);text-decoration:none}
""".replace("\n", "")
_SCRIPT = (
    "setInterval(async()=>{try{const r=await fetch(location.href,{cache:'no-store'});"
    "const d=new DOMParser().parseFromString(await r.text(),'text/html');"
    "document.querySelector('main').replaceWith(d.querySelector('main'))}"
    "catch{document.querySelector('.badge').textContent='unreachable'}},2000)"
)


def page(state: State) -> str:
    """The whole document."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"/><title>draftline</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<noscript><meta http-equiv="refresh" content="5"/></noscript>'
        f"<style>{_STYLE}</style></head><body><main>{_header(state)}{_tiles(state)}{_charts(state)}"
        f"{_plan(state.board)}{_footer(state)}</main><script>{_SCRIPT}</script></body></html>"
    )


def _header(state: State) -> str:
    word: str = state.phase
    colour = {"starting": "warn", "ready": "ok", "draining": "warn"}[state.phase]
    if state.lost is not None:
        word, colour = "workers lost", "bad"
    serving = state.serving
    names = " ".join(serving.names) if serving else "loading"
    graph = f"{serving.pipeline.prepared.graph.name} · {serving.pipeline.prepared.settings.runtime}" if serving else ""
    up = int(time.time()) - state.created
    return (
        f'<header><h1>draft<span>line</span></h1><span class="badge" style="--c:var(--{colour})">{word}</span>'
        f'<strong>{escape(names)}</strong><span class="dim">{escape(graph)}</span>'
        f'<span class="dim">up {_duration(up)}</span></header>'
    )


def _tiles(state: State) -> str:
    engines = list(state.metrics.engines())
    live = sum(len(e.scheduler.live) for e in engines)
    slots = sum(e.sizes.max_num_seqs for e in engines)
    waiting = sum(len(e.scheduler.waiting) for e in engines)
    pages = sum(e.sizes.geometry().num_pages for e in engines)
    used = pages - sum(e.num_free_pages for e in engines)
    board = state.board
    tiles = [
        (f"{live}", f"running, of {slots} slots"),
        (f"{waiting}", "waiting"),
        (f"{board.rate(10):.1f}", "tokens/s, last 10 s"),
        (f"{board.length():.2f}", "tokens per request and step"),
        (f"{used / pages:.0%}" if pages else "–", f"of {pages} cache pages"),
        (f"{board.tokens:,}", "tokens in all"),
    ]
    return f'<div class="tiles">{"".join(_tile(*tile) for tile in tiles)}</div>'


def _tile(value: str, says: str) -> str:
    return f'<div class="card tile"><b>{value}</b><span>{escape(says)}</span></div>'


def _charts(state: State) -> str:
    board, now = state.board, time.monotonic()
    recent = [s for s in list(board.steps) if now - s.at <= SECONDS]
    shares = board.acceptance()
    none = '<div class="empty">nothing yet</div>'
    depths = line(_depths(recent, now), SECONDS, "depth over time") if recent else none
    charts = [
        ("Acceptance", "share of drafts accepted, by position", "", bars(shares, "acceptance") if shares else none),
        ("Depth", "K chosen, mean of each second", "steps", depths),
        ("Throughput", "tokens/s", "", line(_rates(recent, now), SECONDS, "tokens per second") if recent else none),
    ]
    cards = [
        f'<div class="card {kind}"><h2>{title}<small>{says}</small></h2>{svg}</div>'
        for title, says, kind, svg in charts
    ]
    return f'<div class="charts">{"".join(cards)}</div>'


def _depths(steps: Sequence[Step], now: float) -> list[tuple[float, float]]:
    """The mean depth of each whole second that had steps, oldest first."""
    seconds = groupby(steps, key=lambda step: int(now - step.at))
    return [(float(ago), mean(step.k for step in group)) for ago, group in seconds]


def _rates(steps: Sequence[Step], now: float) -> list[tuple[float, float]]:
    """Tokens of each whole second, oldest first."""
    counts = Counter[int]()
    for step in steps:
        counts[int(now - step.at)] += step.tokens
    return [(float(ago), float(counts[ago])) for ago in range(int(SECONDS) - 1, 0, -1)]


def _plan(board: Board) -> str:
    title = "Plan<small>one step, as compiled</small>"
    drawn = picture(board.plan) if board.plan is not None else '<div class="empty">no step yet</div>'
    return f'<div class="card"><h2>{title}</h2><div class="scroll">{drawn}</div></div>'


def _footer(state: State) -> str:
    links = "".join(f'<a href="{p}">{p}</a>' for p in ("/metrics", "/v1/models", "/health", "/openapi.json"))
    return f"<footer><span>draftline {version('draftline')}</span>{links}</footer>"


def _duration(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {clock}" if days else clock
