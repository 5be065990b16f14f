"""Steps that are prepared ahead: metadata that is written while the step before still runs.

Knows: how a step's tokens complete the next one's metadata; where in a bank of metadata everything is. Does not know:
requests, who runs a step.

While a step runs, the driver writes the next one's metadata as it would have been before that step, with a line per
slot that says how to go on. Whoever reads the metadata completes it first, with the tokens that the step has left in
the arena: the last token is resolved where it was made, and nothing that stands for one ever reaches an embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftline.compiler.plan import Plan

from .arena import Arena, metadata_arrays

Ints = np.ndarray
"""int64."""

CAP, BUDGET, RULE, DEPTH = range(4)
FIELDS = 4
"""Of a slot's line: the most drafts that it may have (-1: the slot is as the metadata says), the tokens that it could
get before the last step, what its drafter is told, and the drafts of the last step."""

NOTHING, ALL, MORE, UNSEEN = range(4)
"""What a drafter is told: nothing; the tokens of the last step; these behind those that wait; those of which its own
drafting has not written the rows (see ``catch_up.py``)."""


@dataclass(frozen=True)
class Bank:
    """Metadata of one call in memory of its own: ``inputs`` by name, and ``lines`` [N, FIELDS] where it follows a
    step."""

    metadata: Tensor
    inputs: dict[str, Ints]
    lines: Ints


def bank_bytes(plans: Sequence[Plan]) -> int:
    """Bytes of a bank that serves any of the plans."""
    return max(plan.metadata[1] + plan.dim("N") * FIELDS * 8 for plan in plans)


def bank(plan: Plan, memory: Tensor) -> Bank:
    """A plan's view of a bank's memory [bytes] uint8."""
    size, lines = plan.metadata[1], plan.dim("N") * FIELDS * 8
    own = memory[size : size + lines].view(torch.int64).view(-1, FIELDS)
    return Bank(memory[:size], metadata_arrays(plan, memory), own.numpy())


@dataclass(frozen=True)
class Committed:
    """What a plan's steps commit, in the arena: tokens [N, M], count [N]."""

    tokens: Ints
    count: Ints


def committed(plan: Plan, arena: Arena) -> Committed | None:
    """None for a plan that commits nothing: a prefill call."""
    views = dict(plan.outputs)
    if not {"tokens", "count"} <= views.keys():
        return None
    return Committed(arena.view(views["tokens"]).numpy(), arena.view(views["count"]).numpy())


def read(given: Bank, arena: Arena, inputs: Mapping[str, Ints], before: Committed | None) -> None:
    """Bring a bank into the arena, where ``inputs`` are; ``before``: the step that it follows, if it does."""
    last = None if before is None else (before.tokens.copy(), before.count.copy())  # the copy may overwrite them
    arena.metadata.copy_(given.metadata)
    if last is not None:
        complete(inputs, given.lines, *last)


def complete(inputs: Mapping[str, Ints], lines: Ints, tokens: Ints, count: Ints) -> None:
    """Complete metadata in place: ``tokens`` [N, M] and ``count`` [N] are what the last step committed. A slot that can
    get no more is emptied, also one whose grammar left it no token (``stages/sampling/sampler.py``, NOTHING)."""
    for n in np.flatnonzero(lines[:, CAP] >= 0):
        cap, budget, rule, depth = (int(x) for x in lines[n])
        made, position = int(count[n]), int(inputs["position"][n])
        left, new = budget - made, tokens[n, :made]
        if left <= 0 or new[-1] < 0:
            inputs["depth"][n] = inputs["tail"][n] = inputs["position"][n] = -1
            if "num_recent" in inputs:
                inputs["num_recent"][n] = 0
            continue
        inputs["tail"][n], inputs["position"][n], inputs["depth"][n] = new[-1], position + made, min(cap, left - 1)
        if "history" in inputs:  # of a slot that needs none, nobody looks at it
            inputs["history"][n, position + 1 : position + 1 + made] = new
        if "recent" in inputs:
            told = np.concatenate((inputs["recent"][n, : inputs["num_recent"][n]], new))
            most = inputs["recent"].shape[1]
            sizes = (0, min(made, most), min(len(told), most), 1 + made - min(made, depth))
            size = sizes[rule]
            inputs["num_recent"][n], inputs["recent"][n] = size, -1
            inputs["recent"][n, :size] = told[len(told) - size :]
