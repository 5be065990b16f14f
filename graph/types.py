"""Shapes and dtypes of one node: unify the signature's symbols with what is connected.

Knows: symbols are local to a signature until a connection binds them. Does not know: numbers, other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .core import Dim, ForEach, Node, Port, Repeat, Signature

Problem = tuple[str, str]
"""(port, what is wrong)."""

WINDOW, ROWS = "W", "S"


def node_outputs(node: Node, signature: Signature) -> list[str]:
    """Names that may be referred to: the stage's outputs, and what a loop collects."""
    own = [p.name for p in signature.outputs]
    return own if node.loop is None else [*own, *(name for _, name in node.loop.collect if name not in own)]


def check_node_types(
    node: Node, signature: Signature, known: Mapping[str, Port]
) -> tuple[dict[str, Port], list[Problem]]:
    """Types of the node's outputs, and the problems found while unifying its inputs with ``known``."""
    problems: list[Problem] = []
    bound: dict[str, Dim] = {}
    loop = node.loop
    for name, ref in node.inputs:
        port, source = signature.input(name), known.get(ref)
        if port is None or source is None:
            continue  # another rule speaks of it
        shape = source.shape
        if isinstance(loop, ForEach) and name in loop.each:
            if len(shape) < 2 or shape[1] != WINDOW:
                problems.append((name, f"for_each cuts [N, {WINDOW}, …] along axis 1; {ref} is {_show(shape)}"))
                continue
            shape = (shape[0], ROWS, *shape[2:])
        problems += _unify(port, shape, source.dtype, ref, bound)
    outputs = {p.name: replace(p, shape=_resolve(p.shape, bound)) for p in signature.outputs}
    if loop is None:
        return outputs, problems
    for name, output in loop.carry:
        port, given = signature.input(name), outputs.get(output)
        if port is not None and given is not None:
            problems += _unify(port, given.shape, given.dtype, f"carried output {output!r}", bound)
    collected = {}
    for output, name in loop.collect:
        if output not in outputs:
            continue
        shape = outputs[output].shape
        if isinstance(loop, Repeat):
            shape = (*shape[:1], loop.times, *shape[1:])
        elif len(shape) < 2 or shape[1] != ROWS:
            problems.append((output, f"for_each joins [N, {ROWS}, …] along axis 1; this is {_show(shape)}"))
        else:
            shape = (shape[0], WINDOW, *shape[2:])
        collected[name] = Port(name, shape, outputs[output].dtype)
    return {**outputs, **collected}, problems


def _unify(port: Port, shape: tuple[Dim, ...], dtype: str, ref: str, bound: dict[str, Dim]) -> list[Problem]:
    if dtype != port.dtype:
        return [(port.name, f"wants dtype {port.dtype}, {ref} is {dtype}")]
    if len(shape) != len(port.shape):
        return [(port.name, f"wants {_show(port.shape)}, {ref} is {_show(shape)}: another number of dimensions")]
    for mine, theirs in zip(port.shape, shape, strict=True):
        meaning = bound.setdefault(mine, theirs) if isinstance(mine, str) else mine
        if meaning != theirs:
            said = f"{mine} is {meaning} here" if mine != meaning else f"{mine} is wanted"
            return [(port.name, f"wants {_show(port.shape)}, {ref} is {_show(shape)}: {said}, not {theirs}")]
    return []


def _resolve(shape: tuple[Dim, ...], bound: Mapping[str, Dim]) -> tuple[Dim, ...]:
    return tuple(bound.get(d, d) if isinstance(d, str) else d for d in shape)


def _show(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
