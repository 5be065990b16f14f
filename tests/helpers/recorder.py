"""Logits of every row that a target scores. Helper for tests; no tests in here."""

from __future__ import annotations

from collections import defaultdict

import torch

from draftline.stages.models.core import Rows
from draftline.stages.models.deepseek_v4.model import DeepseekV4Target


class Recorder:
    """Keeps the logits of every (request prefix, position) row that a wave scored."""

    def __init__(self, target: DeepseekV4Target) -> None:
        self._target, self._forward, self._logits = target, target.forward, target.logits
        self.rows: dict[tuple[int, int], list[torch.Tensor]] = defaultdict(list)
        target.forward, target.logits = self.forward, self.logits  # type: ignore[method-assign]

    def forward(self, rows: Rows) -> torch.Tensor:
        self._rows = rows
        return self._forward(rows)

    def logits(self, streams: torch.Tensor) -> torch.Tensor:
        out = self._logits(streams)
        for i, (slot, position) in enumerate(zip(self._rows.slots, self._rows.positions, strict=True)):
            if slot >= 0:
                self.rows[int(slot), int(position)].append((int(self._rows.tokens[i]), out[i].clone()))  # type: ignore[arg-type]
        return out
