"""The nouns of a stage: what it is given when it is built, and what it is told at each call.

Knows: the contract between a stage and whoever runs it. Does not know: models, graphs, plans.

A stage is a class with a class attribute ``signature`` (``draftline.graph.core.Signature``), a
constructor ``(context, **options)`` and a call ``(call, inputs, outputs) -> None``:

- it reads the tensors in ``inputs``, never writes them, and fills the tensors in ``outputs``, which the
  plan has allocated with the shapes and dtypes of the signature;
- it does not keep tensors of one call for the next, except in caches that it got from ``context``;
- it does not synchronise with the host (no ``.item()``, no shapes that depend on data).

A ``per_wave`` stage fills only the rows of its wave and leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from draftline.graph.core import Signature


@dataclass(frozen=True)
class Layout:
    """B requests × S rows in a tile of T = B·S rows."""

    requests: int
    rows: int

    @property
    def tile(self) -> int:
        return self.requests * self.rows

    def __str__(self) -> str:
        return f"B{self.requests}xS{self.rows}"


@dataclass(frozen=True)
class Packed:
    """A tile of T rows that holds rows of any windows. ``rows`` = K + 1: the one chunk is the whole window. The active
    rows of all live slots, in slot order and then column order, are cut into waves of T."""

    tile: int
    rows: int

    def __str__(self) -> str:
        return f"packed T{self.tile}"


AnyLayout = Layout | Packed


@dataclass(frozen=True)
class StageContext:
    """What a stage may use for as long as the plan lives.

    ``dims`` gives each graph symbol its value (``K``, ``N``, ``S``, …). ``target``, ``drafter``
    (the target's MTP layer or head) and ``draft_model`` (a language model of its own) are the models with their caches
    (None where the graph runs without one). ``grammars`` (``grammar.matcher.Grammars``) is what all stages of a process
    share of structured output, None where no tokenizer is at hand.
    """

    device: torch.device
    dtype: torch.dtype
    dims: Mapping[str, int]
    layout: AnyLayout
    target: Any = None
    drafter: Any = None
    draft_model: Any = None
    grammars: Any = None


@dataclass(frozen=True)
class Call:
    """Which call this is: ``iteration`` of a repeat, ``chunk`` with its first window column ``start`` and
    active ``width``, ``wave`` within the chunk. All 0 outside loops."""

    iteration: int = 0
    chunk: int = 0
    start: int = 0
    width: int = 0
    wave: int = 0


Inputs = Mapping[str, Any]
"""Port name → Tensor; None for an optional port that has no value in this call."""


class Stage(Protocol):
    """See the module's docstring."""

    signature: ClassVar[Signature]

    def __call__(self, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None: ...
