"""Which buffers a message must carry where devices share no memory.

Knows: programs, who reads what. Does not know: sockets. Found by replaying the programs with a version per buffer, so
nothing is sent that the other side has, and everything that anybody behind it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftline.compiler.plan import Instruction, Plan


@dataclass(frozen=True)
class Carried:
    """Buffers by name: with the driver's message, with each edge's signal, and with the answer to the driver."""

    step: tuple[str, ...]
    edges: tuple[tuple[str, ...], ...]
    done: tuple[str, ...]


def travelling(plans: Sequence[Plan]) -> frozenset[str]:
    """States that are read or written on several devices, over all plans: the driver keeps these between steps."""
    users: dict[str, set[str]] = {}
    for plan in plans:
        states = {spec.name for spec in plan.buffers if spec.kind == "state"}
        for worker in plan.workers:
            for instruction in worker.instructions:
                touched = _reads(plan, instruction) | {c.target for c in instruction.copies}
                for name in touched & states:
                    users.setdefault(name, set()).add(worker.device)
    return frozenset(name for name, devices in users.items() if len(devices) > 1)


def carried(plan: Plan, states: frozenset[str]) -> Carried:
    """What each message of ``plan`` carries; ``states`` as ``travelling`` gives them."""
    programs = {w.device: w.instructions for w in plan.workers}
    kinds = {spec.name: spec.kind for spec in plan.buffers}
    written = {c.target for p in programs.values() for i in p if i.op == "WRITE" for c in i.copies}
    done = [*dict.fromkeys(view.buffer for _, view in plan.outputs), *sorted(states & written)]
    needed = {name for p in programs.values() for i in p for name in _reads(plan, i)} | set(done)
    step = tuple(n for n in kinds if n in needed and (kinds[n] == "input" or n in states))
    polled = {
        i.edge: {c.source.buffer for c in i.copies if c.source} for p in programs.values() for i in p if i.op == "POLL"
    }
    has: dict[str, dict[str, int]] = {device: {} for device in programs}
    has[plan.entry] = dict.fromkeys(step, 1)
    sent: dict[int, dict[str, int]] = {}
    version, at, moved = 1, dict.fromkeys(programs, 0), True
    while moved:
        moved = False
        for device, program in programs.items():
            mine = has[device]
            while at[device] < len(program):
                i = program[at[device]]
                if i.op == "WAIT" and i.edge not in sent:
                    break
                at[device], moved = at[device] + 1, True
                if i.op == "WAIT":
                    mine.update({n: max(v, mine.get(n, 0)) for n, v in sent[i.edge].items()})
                elif i.op == "SIGNAL":
                    theirs = has[plan.edges[i.edge].target]
                    newer = {n for n, v in mine.items() if n in needed and v > theirs.get(n, 0)}
                    # Who polls may be anywhere: the verdict itself, and nothing that could be older than what it has.
                    sent[i.edge] = {n: mine[n] for n in polled.get(i.edge, newer) if n in mine}
                for name in _writes(plan, i):
                    version += 1
                    mine[name] = version
    return Carried(step, tuple(tuple(sorted(sent.get(n, ()))) for n in range(len(plan.edges))), tuple(done))


def _reads(plan: Plan, i: Instruction) -> set[str]:
    names = {c.source.buffer for c in (*i.copies, *i.otherwise) if c.source}
    if i.when is not None:
        names.add(i.when.buffer)
    if i.op == "RUN":
        names |= {v.buffer for run in plan.segment(i.segment).runs for _, v in run.inputs if v is not None}
    return names


def _writes(plan: Plan, i: Instruction) -> Iterable[str]:
    if i.op == "RUN":
        yield from {v.buffer for run in plan.segment(i.segment).runs for _, v in run.outputs}
    if i.op in ("WRITE", "POLL"):
        yield from (c.target for c in i.copies)
