"""What the stages need of a model. Knows: rows and two protocols. Does not know: any architecture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from draftline.stages.caches.core import Geometry
from draftline.stages.grammar.matcher import Grammars
from draftline.stages.weights.files import TensorSpec


@dataclass(frozen=True)
class Rows:
    """R rows of one call: tokens, positions and slots [R] int64 (-1 in the latter two: a pad row) and the
    block table pages [N, G] int64. Rows of one request stand in order of position."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    pages: Tensor


Ring = tuple[Tensor, int]
"""A ring cache [ring_slots · length + 2, width] and its length; see caches.core."""


class Target(Protocol):
    """The model whose tokens count, with its caches."""

    num_streams: int
    """H: residual streams per row."""
    hidden_size: int
    """D."""
    vocab_size: int

    @property
    def rings(self) -> Sequence[Ring]:
        """Its ring caches; none where all caches are paged."""

    def forward(self, rows: Rows) -> Tensor:
        """Write the rows' cache entries and give their residual streams [R, H, D] before the head."""

    def logits(self, streams: Tensor) -> Tensor:
        """Streams [R, H, D] to float32 logits [R, V]."""

    def greedy(self, streams: Tensor) -> Tensor:
        """Streams [R, H, D] to the likeliest token of each row [R] int64; the first of equals."""


class Drafter(Protocol):
    """A model that drafts from the target's streams, with its own cache."""

    vocab: Tensor | None
    """Of a draft vocabulary of its own: the target's id of each of its V' tokens, [V'] int64."""

    @property
    def rings(self) -> Sequence[Ring]:
        """Its ring caches."""

    def forward(self, rows: Rows, hidden: Tensor) -> Tensor:
        """Rows whose token is the one *after* their position, and the streams [R, H, D] at that position,
        to the drafter's streams [R, H, D]."""

    def logits(self, streams: Tensor) -> Tensor:
        """The drafter's streams [R, H, D] to float32 logits [R, V] of the token two after the position; [R, V'] where
        it drafts from a vocabulary of its own."""

    def greedy(self, streams: Tensor) -> Tensor:
        """The drafter's streams [R, H, D] to its likeliest token of each row [R] int64, in the target's numbering."""


@dataclass(frozen=True)
class Shape:
    """What the compiler and the driver must know of a model without loading it."""

    vocab_size: int
    num_streams: int
    hidden_size: int
    max_len: int
    num_mtp_layers: int
    ratios: tuple[int, ...]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    slot_per_row: bool = False
    """Whether the kernels take a slot and a position for each row of a call, so that rows of any requests may stand
    side by side in it (layout ``packed T``)."""
    rings: bool = False
    """Whether the target keeps some of its cache in rings, one per slot, beside the pages."""


@dataclass(frozen=True)
class Loaded:
    """A model ready to run: its caches are allocated. ``drafter`` is None where there is no MTP block, ``draft_model``
    where no language model drafts; each is None where nothing uses it."""

    shape: Shape
    target: Target | None
    drafter: Drafter | None
    geometry: Geometry
    dtype: torch.dtype
    device: torch.device
    draft_model: Target | None = None
    """A language model that drafts: greedy tokens of its own, in the target's numbering, below its vocabulary."""
    grammars: Grammars | None = None
    """Of requests with structured output; None where no tokenizer is at hand."""


@dataclass(frozen=True)
class ModelFiles:
    """The folder of a target, of the MTP head that drafts for it in place of its own (None: its own, if any), and of
    the language model that drafts for it, if one does."""

    folder: Path
    mtp: Path | None = None
    draft_model: Path | None = None


@dataclass(frozen=True)
class BuildOptions:
    """How a model is made. ``uses``: what is wanted of it (target, drafter). ``native``: on native kernels."""

    geometry: Geometry
    dtype: torch.dtype
    device: torch.device
    uses: Collection[str]
    native: bool = False


Build = Callable[[Path, Mapping[str, Tensor], BuildOptions], tuple[Target | None, Drafter | None]]


@dataclass(frozen=True)
class Family:
    """How models of some ``model_types`` are read, from the path of their config.json; all raise ConfigError.

    ``specs``: the tensors that must be there, and the names that may be there besides. ``build``: those tensors to
    the target and the drafter, of which only what is used is made. ``matrices``: names of the embedding and the output
    matrix [V, D]."""

    model_types: tuple[str, ...]
    shape: Callable[[Path], Shape]
    specs: Callable[[Path], tuple[Mapping[str, TensorSpec], Collection[str]]]
    cache_bytes: Callable[[Path, Geometry, torch.dtype], int]
    build: Build
    matrices: Callable[[Path], tuple[str, str]]
    native_heads: Callable[[Path], int] = lambda path: 0
    """The width of a head that native kernels must serve; 0: the family has none."""
