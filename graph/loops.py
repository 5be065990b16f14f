"""What a loop may carry, cut and collect. Knows: port names of one node. Does not know: types, other nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .core import ForEach, Node, Repeat, Signature
from .errors import nearest

Problem = tuple[str, str]
"""(port, or '' for the whole node; what is wrong)."""


def loop_problems(node: Node, signature: Signature) -> Iterator[Problem]:
    """What is wrong with the node's loop; nothing for a node without one."""
    loop = node.loop
    if loop is None:
        return
    kind = "repeat" if isinstance(loop, Repeat) else "for_each"
    inputs, outputs = [p.name for p in signature.inputs], [p.name for p in signature.outputs]
    if isinstance(loop, Repeat) and not loop.carry:
        yield "", "repeat has no carry, so each iteration would do the same; carry an output to an input"
    for port, output in loop.carry:
        if port not in inputs:
            yield port, f"{kind} carries to an input that does not exist{nearest(port, inputs)}"
        if output not in outputs:
            yield output, f"{kind} carries an output that does not exist{nearest(output, outputs)}"
    for port in _twice(port for port, _ in loop.carry):
        yield port, f"{kind} carries two outputs to this input; keep one"
    for output, _ in loop.collect:
        if output not in outputs:
            yield output, f"{kind} collects an output that does not exist{nearest(output, outputs)}"
    for name in _twice(name for _, name in loop.collect):
        yield name, f"{kind} collects two outputs under this name; give each its own"
    for output, name in loop.collect:
        # A chunk loop may collect ``predicted`` as ``predicted``: the joined value is all that a reader wants.
        if name in outputs and (isinstance(loop, Repeat) or name != output):
            yield name, "the collected name hides the output of that name; choose another"
    if isinstance(loop, ForEach):
        yield from _cuts(node, loop, inputs)


def _cuts(node: Node, loop: ForEach, inputs: list[str]) -> Iterator[Problem]:
    fed, carried = {port for port, _ in node.inputs}, {port for port, _ in loop.carry}
    for port in loop.each:
        if port not in inputs:
            yield port, f"for_each cuts an input that does not exist{nearest(port, inputs)}"
        elif port not in fed:
            yield port, "for_each cuts an input that is not connected; connect it or take it out of each"
        if port in carried:
            yield port, "for_each both cuts this input and carries to it; one of the two is wanted"
    for port in _twice(loop.each):
        yield port, "for_each cuts this input twice; name it once"


def _twice(names: Iterable[str]) -> list[str]:
    seen = list(names)
    return sorted({name for name in seen if seen.count(name) > 1})
