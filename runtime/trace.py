"""Spans of what ran when, and the trace file that Perfetto and chrome://tracing open.

Knows: a ring of numbers per worker, the trace event format (JSON array format, "Trace Event Format", Google 2016).
Does not know: how a step is scheduled, what it computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftline.compiler.plan import Plan
from draftline.graph.errors import UsageError
from draftline.stages.core import Packed

SPAN_ROWS = 8192
SPAN_FIELDS = 6
"""begin and end (CLOCK_MONOTONIC, ns), step, number of the plan, index of the instruction, 1 if it ran."""


class Spans:
    """A ring of spans with one writer: array [1 + SPAN_ROWS · SPAN_FIELDS] int64, the first element counts. None
    keeps nothing."""

    def __init__(self, array: np.ndarray | None) -> None:
        self.on = array is not None
        self._count = None if array is None else array[:1]
        self._rows = None if array is None else array[1:].reshape(SPAN_ROWS, SPAN_FIELDS)
        self._taken = 0

    @classmethod
    def private(cls, on: bool) -> Spans:
        """A ring of this process."""
        return cls(np.zeros(1 + SPAN_ROWS * SPAN_FIELDS, dtype=np.int64) if on else None)

    def add(self, begin: int, end: int, step: int, plan: int, index: int, ran: bool) -> None:
        """Keep one span; the oldest one gives way."""
        if self._rows is None or self._count is None:
            return
        n = int(self._count[0])
        self._rows[n % SPAN_ROWS] = (begin, end, step, plan, index, ran)
        self._count[0] = n + 1

    def take(self) -> Iterator[tuple[int, ...]]:
        """The spans since the last call, oldest first."""
        if self._rows is None or self._count is None:
            return
        end = int(self._count[0])
        if end < self._taken:  # the ring was cleared: its writer was started anew
            self._taken = 0
        for n in range(max(self._taken, end - SPAN_ROWS), end):
            yield tuple(int(v) for v in self._rows[n % SPAN_ROWS])
        self._taken = end


@dataclass(frozen=True)
class StepInfo:
    """What the driver knows of a step. ``requests``: request index → (slot, drafts, accepted)."""

    step: int
    k: int
    requests: Mapping[int, tuple[int, int, int]]


class Trace:
    """Events of a run, one process in the picture per group, one track per worker and one for the driver."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    def name(self, group: int, device: str, worker: int) -> None:
        """Give a worker's track its name."""
        for what, tid, label in (
            ("process_name", 0, f"group {group}"),
            ("thread_name", 0, "driver"),
            ("thread_name", worker + 1, f"worker {worker} ({device})"),
        ):
            self._events.append({"ph": "M", "pid": group, "tid": tid, "name": what, "args": {"name": label}})

    def driver(self, group: int, begin: int, end: int, name: str, info: StepInfo) -> None:
        """A step as the driver saw it."""
        args = {"step": info.step, "K": info.k, "requests": sorted(info.requests)}
        self._events.append(_span(group, 0, begin, end, name, args))

    def spans(self, group: int, worker: int, device: str, plans: Sequence[Plan], spans: Spans, info: StepInfo) -> None:
        """Take a worker's new spans. Those of an earlier step are of one that failed; nobody was served by it."""
        for begin, end, step, number, index, ran in spans.take():
            plan = plans[number]
            program = next(w for w in plan.workers if w.device == device)
            instruction = program.instructions[index]
            segment = plan.segment(instruction.segment)
            run = segment.runs[0]
            served = info if step == info.step else replace(info, requests={})
            args: dict[str, Any] = {"step": step, "K": plan.num_speculative_tokens, "requests": sorted(served.requests)}
            if segment.per_wave:
                args |= {"wave": instruction.wave, "chunk": run.chunk}
                args["requests"] = _served(plan, run.chunk, instruction.wave, served)
            if not ran and segment.per_wave:
                continue  # a wave with nobody in it is no event
            if not ran:
                self._events.append(
                    {"ph": "i", "s": "t", "pid": group, "tid": worker + 1, "ts": begin / 1e3, "args": args}
                    | {"name": f"cancelled {run.op}", "cat": "cancelled"}
                )
                continue
            self._events.append(_span(group, worker + 1, begin, end, f"{plan.name}.{segment.name}", args))

    def request(self, group: int, request: int, begin: int, end: int, args: Mapping[str, Any]) -> None:
        """A request from admission to its end, as an async slice."""
        common = {"cat": "request", "id": request, "pid": group, "tid": 0, "name": f"request {request}"}
        self._events.append({"ph": "b", "ts": begin / 1e3, "args": dict(args), **common})
        self._events.append({"ph": "e", "ts": end / 1e3, **common})

    def instant(self, group: int, at: int, name: str, args: Mapping[str, Any]) -> None:
        """Something that happened to a group, such as a restart."""
        event = {"ph": "i", "s": "p", "pid": group, "tid": 0, "ts": at / 1e3, "name": name, "args": dict(args)}
        self._events.append(event)

    @classmethod
    def to(cls, path: Path) -> Trace:
        """A trace that will be written to ``path``. Raises UsageError if that cannot be done."""
        try:
            _part(path).touch()
        except OSError as error:
            raise UsageError(f"--trace {path}: cannot be written: {error}") from None
        return cls()

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        temporary = _part(path)
        temporary.write_text(json.dumps({"traceEvents": self._events, "displayTimeUnit": "ms"}), "utf-8")
        temporary.replace(path)


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _span(pid: int, tid: int, begin: int, end: int, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    common = {"pid": pid, "tid": tid, "ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {"ph": "X", "name": name, "args": dict(args), **common}


def _served(plan: Plan, chunk: int, wave: int, info: StepInfo) -> list[int]:
    """The requests in a wave: live ones in slot order. A request is in chunk c if it has a row there, and all its
    drafts before that were accepted. Packed, all their rows follow each other, and a wave is the next T of them."""
    layout = plan.layout.chosen
    if isinstance(layout, Packed):
        rows = [
            r
            for _, depth, r in sorted((slot, depth, r) for r, (slot, depth, _) in info.requests.items())
            for _ in range(depth + 1)
        ]
        return list(dict.fromkeys(rows[wave * layout.tile : (wave + 1) * layout.tile]))
    first = chunk * layout.rows
    live = sorted((slot, r) for r, (slot, depth, accepted) in info.requests.items() if min(depth, accepted) >= first)
    return [r for _, r in live[wave * layout.requests : (wave + 1) * layout.requests]]
