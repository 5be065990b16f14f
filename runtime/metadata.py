"""A call's metadata: what the driver tells a plan of the requests, as int64 arrays that travel in one copy.

Knows: the names of the driver's inputs and what each holds. Does not know: plans, who is admitted, how a call runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from draftline.graph.errors import PlanError, nearest

from .request import Live
from .sampled import HISTORY, SAMPLING, write_sampling

Arrays = Mapping[str, np.ndarray]

STEP = ("tail", "position", "depth", "recent", "num_recent", "pages", HISTORY, SAMPLING)
FILL = ("tokens", "following", "positions", "slots", "draft_slots", "pages", "restore", "keep")


def check_names(inputs: Arrays, known: Sequence[str], graph: str) -> None:
    """Raises PlanError for an input that the driver has nothing for."""
    for name in inputs:
        if name not in known:
            raise PlanError(f"graph {graph!r}: the driver has no input {name!r}{nearest(name, known)}")


def write_step(
    inputs: Arrays, batch: Sequence[Live], depth: Mapping[int, int], table: np.ndarray, everyone: bool = True
) -> None:
    """Fill a decode step's inputs: a row per slot, -1 where nobody is. ``depth``: by slot. ``table``: block table.
    ``everyone``: whether all need the history, or only who samples by it."""
    for name, array in inputs.items():
        if name not in (HISTORY, SAMPLING):  # the wide ones
            array.fill(-1)
    write_sampling(inputs, batch, everyone)
    for live in batch:
        n = live.slot.index
        values = {"tail": live.tokens[-1], "position": len(live.tokens) - 1, "depth": depth[n]}
        if "recent" in inputs:
            told = values["num_recent"] = min(live.num_recent, inputs["recent"].shape[1])
            inputs["recent"][n, :told] = live.tokens[len(live.tokens) - told :]
        for name, value in values.items():
            if name in inputs:
                inputs[name][n] = value
    if "num_recent" in inputs:
        np.maximum(inputs["num_recent"], 0, out=inputs["num_recent"])
    inputs["pages"][:] = table


def write_fill(inputs: Arrays, rows: Sequence[tuple[Live, int]], table: np.ndarray, target: bool = True) -> None:
    """Fill a prefill or replay call's inputs: a row per (request, position), -1 in pad rows. Without ``target``, they
    are rows of the draft model alone."""
    for array in inputs.values():
        array.fill(-1)
    for i, (live, p) in enumerate(rows):
        inputs["tokens"][i], inputs["positions"][i] = live.tokens[p], p
        if target:
            inputs["slots"][i] = live.slot.index
        if "draft_slots" in inputs:
            inputs["draft_slots"][i] = live.slot.index
        if "following" in inputs:
            inputs["following"][i] = live.tokens[p + 1]
    inputs["pages"][:] = table
