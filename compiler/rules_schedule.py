"""Rules on instructions: each worker's order, and that nobody reads on one device what another has not done yet.

Knows: programs, edges. Does not know: how a program came about (``passes/schedule.py``): it is replayed here.
Each function yields one message for each violation and nothing for a valid or an unfinished IR.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftline.compiler.core import IR, Op
from draftline.compiler.plan import Copy, Instruction, View
from draftline.compiler.rules_values import overlaps

Clock = dict[str, int]
"""Device → how many of its instructions are known to be done."""


def _all(ir: IR) -> Iterator[tuple[str, Instruction]]:
    for worker in ir.workers:
        yield from ((worker.device, instruction) for instruction in worker.instructions)


def instructions_ordered(ir: IR) -> Iterator[str]:
    """A worker reads before it runs and writes after it has run, and names only buffers that exist."""
    known = {spec.name for spec in ir.buffers}
    for worker in ir.workers:
        ops = [i.op for i in worker.instructions if i.op in ("READ", "RUN", "POLL", "WRITE")]
        if ops[:1] != ["READ"] or ops[-1:] != ["WRITE"] or {"READ", "WRITE"} & set(ops[1:-1]):
            yield f"{worker.device} does {' '.join(ops)}"
        named = [name for i in worker.instructions for name in i.buffers]
        copies = [c for i in worker.instructions for c in (*i.copies, *i.otherwise)]
        named += [name for c in copies for name in (c.target, *((c.source.buffer,) if c.source else ()))]
        yield from (f"{worker.device} names the unknown buffer {name!r}" for name in named if name not in known)


def states_written(ir: IR) -> Iterator[str]:
    """Every state gets its next value once, from a source that no earlier copy has overwritten."""
    copies = [c for _, i in _all(ir) if i.op == "WRITE" for c in i.copies]
    if ir.workers and sorted(c.target for c in copies) != sorted(name for name, _ in ir.state):
        yield f"copies go to {[c.target for c in copies]}, the states are {[name for name, _ in ir.state]}"
    done: set[str] = set()
    for copy in copies:
        if copy.source is None or copy.source.buffer in done:
            what = "nothing" if copy.source is None else f"{copy.source.buffer!r}, which is overwritten by then"
            yield f"state {copy.target!r} is copied from {what}"
        done.add(copy.target)


def edges_matched(ir: IR) -> Iterator[str]:
    """Every edge has one SIGNAL, on its source, and at least one WAIT or POLL, all on its target."""
    for number, edge in enumerate(ir.edges):
        sent = [device for device, i in _all(ir) if i.op == "SIGNAL" and i.edge == number]
        taken = [device for device, i in _all(ir) if i.op in ("WAIT", "POLL") and i.edge == number]
        if sent != [edge.source] or not taken or set(taken) != {edge.target} or edge.source == edge.target:
            yield f"edge {number} from {edge.source} to {edge.target} is sent by {sent} and taken by {taken}"
    for device, i in _all(ir):
        if i.op in ("WAIT", "POLL", "SIGNAL") and not 0 <= i.edge < len(ir.edges):
            yield f"{device} does {i.op} on the unknown edge {i.edge}"


def happens_before(ir: IR) -> Iterator[str]:
    """Replayed with logical clocks: all programs end, whatever an operation reads was written by then as far as its
    device can know, a state is copied after all have read it, and the exit's device ends last."""
    if not ir.workers:
        return
    by_segment = {s.name: [op for op in ir.ops if op.name in s.ops] for s in ir.segments}
    programs = {w.device: w.instructions for w in ir.workers}
    clocks: dict[str, Clock] = {device: dict.fromkeys(programs, 0) for device in programs}
    signals: dict[int, Clock] = {}
    wrote: dict[str, list[tuple[str, int, View]]] = {}
    read: dict[str, list[tuple[str, int]]] = {}
    at = dict.fromkeys(programs, 0)
    moved = True
    while moved:
        moved = False
        for device, program in programs.items():
            while at[device] < len(program):
                instruction = program[at[device]]
                if instruction.op == "WAIT" and instruction.edge not in signals:
                    break
                at[device] += 1
                moved = True
                clock = clocks[device]
                clock[device] = at[device]
                if instruction.op == "WAIT":
                    for other, count in signals[instruction.edge].items():
                        clock[other] = max(clock[other], count)
                elif instruction.op == "SIGNAL":
                    signals[instruction.edge] = dict(clock)
                elif instruction.op == "RUN":
                    yield from _ran(ir, device, by_segment.get(instruction.segment, []), clock, wrote, read)
                elif instruction.op == "WRITE":
                    yield from _copied(device, instruction.copies, clock, wrote, read)
    yield from (f"{d} waits for ever at {p[at[d]].op} {p[at[d]].edge}" for d, p in programs.items() if at[d] < len(p))
    last = ir.segments[-1].device
    for device, program in programs.items():
        work = [n + 1 for n, i in enumerate(program) if i.op == "RUN" or (i.op == "WRITE" and i.copies)]
        if work and clocks[last].get(device, 0) < work[-1]:
            yield f"{last} tells the driver that the step is done, and cannot know that {device} is"


def _ran(
    ir: IR,
    device: str,
    ops: list[Op],
    clock: Clock,
    wrote: dict[str, list[tuple[str, int, View]]],
    read: dict[str, list[tuple[str, int]]],
) -> Iterator[str]:
    values = {value.name: value for value in ir.values}
    everyone = {name: [o for o in ir.ops if name in o.writes()] for op in ops for name in op.reads()}
    for op in ops:
        for view in op.views():
            done = [w for d, n, w in wrote.get(view.buffer, []) if clock[d] >= n]
            for writer in everyone.get(view.buffer, []):
                wanted = [w for _, w in writer.outputs if w.buffer == view.buffer]
                touched = [w for w in wanted if overlaps(w, view, values[view.buffer])]
                if not writer.poll and any(w not in done for w in touched):
                    yield f"{op.name} on {device} reads {view.buffer!r} and cannot know that {writer.name} is done"
            read.setdefault(view.buffer, []).append((device, clock[device]))
        for _, view in op.outputs:
            wrote.setdefault(view.buffer, []).append((device, clock[device], view))


def _copied(
    device: str,
    copies: tuple[Copy, ...],
    clock: Clock,
    wrote: dict[str, list[tuple[str, int, View]]],
    read: dict[str, list[tuple[str, int]]],
) -> Iterator[str]:
    for copy in copies:
        for other, count in read.get(copy.target, []):
            if clock[other] < count:
                yield f"{device} overwrites state {copy.target!r} and cannot know that {other} has read it"
        source = copy.source.buffer if copy.source else ""
        if any(clock[other] < count for other, count, _ in wrote.get(source, [])):
            yield f"{device} copies {source!r} and cannot know that it is written"
