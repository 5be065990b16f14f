"""A plan that workers run, as the driver sees it.

Knows: where its inputs and outputs lie. Does not know: messages, steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from draftline.compiler.plan import Plan

from .. import ahead
from ..arena import Arena, ArenaLayout, metadata_arrays
from ..running import Outputs


@dataclass
class Turn:
    """Which bank of metadata the driver fills now. Of its own, so that a plan does not hold the group that holds it."""

    bank: int = 0


class RemotePlan:
    """A plan that the workers run; its inputs and outputs lie in the shared arena."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        memory: Tensor,
        layout: ArenaLayout,
        banks: Tensor | None,
        turn: Turn,
    ) -> None:
        """``banks`` [BANKS, bytes] uint8, of which the driver fills number ``turn.bank``; None: it fills the arena."""
        self.plan, self.number, self._turn = plan, number, turn
        self.arena = arena = Arena(plan, memory, layout)
        self._banks = None if banks is None else [ahead.bank(plan, one) for one in banks]
        self._in_arena = metadata_arrays(plan, arena.metadata)
        self._no_lines = np.full((plan.dim("N"), ahead.FIELDS), -1, dtype=np.int64)
        self.outputs: Outputs = {name: arena.view(view) for name, view in plan.outputs}

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """See ``running.Bound``."""
        return self._in_arena if self._banks is None else self._banks[self._turn.bank].inputs

    @property
    def lines(self) -> np.ndarray:
        """See ``running.Bound``."""
        return self._no_lines if self._banks is None else self._banks[self._turn.bank].lines
