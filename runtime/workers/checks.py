"""What a message must satisfy besides its form: only what the plan and the run directory make possible is taken.

Knows: plans, devices, endpoints. Does not know: sockets, steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftline.compiler.plan import Plan

from . import messages as m
from .shared import BANKS


def for_worker(message: m.Message, plans: Sequence[Plan], devices: Sequence[str], device: str) -> bool:
    """Whether the worker that owns ``device`` may ever get this message."""
    if isinstance(message, m.Step):
        known = max(message.plan, message.after - 1) < len(plans) and message.bank < BANKS
        return known and plans[message.plan].entry == device
    if isinstance(message, m.Signal):
        edges = plans[message.plan].edges if message.plan < len(plans) else ()
        return message.edge < len(edges) and edges[message.edge].target == device
    if isinstance(message, m.Peers):
        return len(message.inboxes) == len(devices)
    return isinstance(message, m.Abort | m.Stop)


def ready(message: m.Ready, pids: Sequence[int], endpoint: str) -> bool:
    """Whether this can be the word of a worker that was started, whose inbox was to be ``endpoint`` (``:*`` at its end
    means any port)."""
    bound = message.inbox == endpoint or (endpoint.endswith(":*") and message.inbox.startswith(endpoint[:-1]))
    return message.worker < len(pids) and message.pid == pids[message.worker] and bound
