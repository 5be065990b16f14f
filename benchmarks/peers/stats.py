"""From the race's records to figures: speeds, ratios, acceptance, draft shares. Pure functions of the saved JSON.

Knows: what a record holds. Does not know: how it is shown.

Speed is decode only: ``(new - prompts) / (seconds - first)``, where ``first`` is the median time of a call for one
token of the same prompts. Ratios pair the rounds, since a slow moment of the machine hits neighbours alike.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .entrants import DRAFT_ALONE, PEERS, TARGET_ALONE

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Figures:
    """One entrant in one heat (and suite). ``speeds``: tokens/s by (task, round). ``length``: tokens per target step,
    where the engine tells."""

    speeds: Mapping[tuple[int, int], float]
    length: float | None

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds.values())

    @property
    def quartiles(self) -> tuple[float, float]:
        values = sorted(self.speeds.values())
        if len(values) < 2:
            return values[0], values[0]
        cut = statistics.quantiles(values, n=4, method="inclusive")
        return cut[0], cut[2]


def figures(records: Sequence[Record], suite: str | None = None) -> dict[str, Figures]:
    """By entrant, of one heat's records."""
    by_entrant: dict[str, list[Record]] = defaultdict(list)
    for r in records:
        if suite in (None, r["suite"]):
            by_entrant[r["entrant"]].append(r)
    out = {}
    for name, found in by_entrant.items():
        first: dict[int, list[float]] = defaultdict(list)
        for r in found:
            first[r["task"]].append(r["first_seconds"])
        speeds = {
            (r["task"], r["round"]): (r["new"] - r["prompts"])
            / max(r["seconds"] - statistics.median(first[r["task"]]), 1e-9)
            for r in found
        }
        lengths = [r["length"] for r in found if r["length"] is not None]
        out[name] = Figures(speeds, statistics.fmean(lengths) if lengths else None)
    return out


def ratio(ours: Figures, theirs: Figures) -> float:
    """Median over the rounds that both ran of our speed over theirs; of the medians if they share none."""
    both = ours.speeds.keys() & theirs.speeds.keys()
    if not both:
        return ours.speed / theirs.speed
    return statistics.median(ours.speeds[at] / theirs.speeds[at] for at in both)


def best_peer(found: Mapping[str, Figures]) -> str | None:
    """The fastest entrant that is not draftline."""
    peers = [n for n in found if _engine(n) in PEERS]
    return max(peers, key=lambda n: found[n].speed, default=None)


def best_plain(found: Mapping[str, Figures]) -> Figures | None:
    """draftline's fastest path at K=0: the baseline of its speed-ups."""
    ours = [found[n] for n in ("draftline", TARGET_ALONE) if n in found]
    return max(ours, key=lambda f: f.speed, default=None)


@dataclass(frozen=True)
class Efficiency:
    """What speculation gains against what it could gain. ``share``: K draft calls in units of one target step, both
    measured at K=0. ``bound``: length / (1 + share). ``gain``: speed over the fastest path at K=0."""

    k: int
    length: float
    share: float
    bound: float
    gain: float


def efficiency(plain: Mapping[str, Figures], drafted: Figures, k: int) -> Efficiency | None:
    """None where the draft alone or K=0 has not been measured."""
    base, draft = best_plain(plain), plain.get(DRAFT_ALONE)
    if base is None or draft is None or drafted.length is None:
        return None
    share = k * base.speed / draft.speed
    return Efficiency(k, drafted.length, share, drafted.length / (1 + share), drafted.speed / base.speed)


def agreement(records: Iterable[Record], plain: Iterable[Record]) -> dict[str, tuple[int, int]]:
    """By entrant: how many texts equal those that the same engine gave at K=0, of how many; up to the shorter one."""
    truth = {
        (_engine(r["entrant"]), r["suite"], i, r["task"]): t
        for r in plain
        if r["tokens"] is not None and r["entrant"] not in (TARGET_ALONE, DRAFT_ALONE)
        for i, t in enumerate(r["tokens"])
    }
    out: dict[str, tuple[int, int]] = {}
    for r in records:
        for i, text in enumerate(r["tokens"] or ()):
            other = truth.get((_engine(r["entrant"]), r["suite"], i, r["task"]))
            if other is not None:
                same, of = out.get(r["entrant"], (0, 0))
                n = min(len(text), len(other))
                out[r["entrant"]] = (same + (text[:n] == other[:n]), of + 1)
    return out


def _engine(entrant: str) -> str:
    return entrant.partition("-")[0]
