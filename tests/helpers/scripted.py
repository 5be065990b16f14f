"""Models and drafters that do as they are told. Helper for tests; no tests in here.

``Scripted`` is a target whose next token is a function of (token, position) only; it logs every row that it is
given, so tests see exactly what a wave contained. ``Wilful`` is a drafter that drafts what a function says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftline.stages.caches.core import Geometry
from draftline.stages.models.core import Loaded, Rows, Shape

NextToken = Callable[[int, int], int]
"""(token, position) → the next token."""

VOCAB = 128


@dataclass
class Scripted:
    """streams [R, 1, 2] hold (token, position) of the row; logits put 1 on the scripted next token."""

    next_token: NextToken
    num_streams: int = 1
    hidden_size: int = 2
    vocab_size: int = VOCAB
    vocab: None = None
    calls: list[list[tuple[int, int, int]]] = field(default_factory=list)
    """Per call, the (slot, position, token) of its real rows."""

    def forward(self, rows: Rows) -> Tensor:
        real = [
            (int(s), int(p), int(t))
            for s, p, t in zip(rows.slots, rows.positions, rows.tokens, strict=True)
            if int(s) >= 0
        ]
        self.calls.append(real)
        return torch.stack((rows.tokens, rows.positions), -1).float().unsqueeze(1)

    def logits(self, streams: Tensor) -> Tensor:
        out = torch.zeros(len(streams), self.vocab_size)
        for i, (token, position) in enumerate(streams[:, 0].long().tolist()):
            if position >= 0:
                out[i, self.next_token(token, position) % self.vocab_size] = 1
        return out

    def greedy(self, streams: Tensor) -> Tensor:
        return self.logits(streams).argmax(-1)


@dataclass
class Wilful(Scripted):
    """A drafter: ``next_token(token, position)`` is what it drafts after the row with that token at position + 1."""

    def forward(self, rows: Rows, hidden: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(
            Rows(rows.tokens, torch.where(rows.positions >= 0, rows.positions + 1, -1), rows.slots, rows.pages)
        )


def loaded(target: Scripted, drafter: Scripted | None, geometry: Geometry, eos: tuple[int, ...] = ()) -> Loaded:
    """The two as a model that an engine takes."""
    shape = Shape(
        vocab_size=target.vocab_size,
        num_streams=target.num_streams,
        hidden_size=target.hidden_size,
        max_len=4096,
        num_mtp_layers=0 if drafter is None else 1,
        ratios=(),
        bos_token_id=None,
        eos_token_ids=eos,
        slot_per_row=True,
    )
    return Loaded(shape, target, drafter, geometry, torch.float32, torch.device("cpu"))
