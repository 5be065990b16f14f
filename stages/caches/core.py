"""Position-addressed caches: where a row is written and which rows it may read, as flat indices.

Knows: rings, pages, and the meaning of index -1. Does not know: models, what an entry holds.

A cache is one tensor [n + 2, d], allocated once. Row n stays zero for ever and row n + 1 takes what pad rows
write. Index -1 reads the zero row and writes the other, so what stands for nobody writes nothing that any
read can see, and what a row may not see is exactly zero. Nothing here depends on data, only on positions.

Rejected drafts need no undo: position p is written again by whoever commits it, before anything reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.graph.errors import PlanError


@dataclass(frozen=True)
class Geometry:
    """Static sizes of a deployment's caches.

    slots: requests at once. max_len: positions of a request. page_size: positions per page. num_pages: pages
    in the pool. in_flight: the most rows of one request that a call, or a step's window, may write ahead. snapshots:
    places in which the rings of a slot can be kept for whoever has the same prefix later.
    """

    slots: int
    max_len: int
    page_size: int
    num_pages: int
    in_flight: int
    snapshots: int = 0

    @property
    def pages_per_slot(self) -> int:
        return -(-self.max_len // self.page_size)

    @property
    def ring_slots(self) -> int:
        """Rings of a ring cache: one per slot, then one per snapshot."""
        return self.slots + self.snapshots


def allocate(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A cache of ``rows`` rows: [rows + 2, width], zero."""
    return torch.zeros(rows + 2, width, dtype=dtype, device=device)


def write(cache: Tensor, index: Tensor, rows: Tensor) -> None:
    """Write rows [R, d] at index [R]; -1 goes to the row that nobody reads."""
    cache.index_copy_(0, torch.where(index < 0, cache.shape[0] - 1, index), rows)


def read(cache: Tensor, index: Tensor) -> Tensor:
    """Rows [..., d] at index [...]; -1 gives zeros."""
    return cache[torch.where(index < 0, cache.shape[0] - 2, index)]


def ring_length(window: int, geometry: Geometry) -> int:
    """Positions that a ring holds: a row reads ``window`` back while up to ``in_flight`` newer ones are there."""
    return window + geometry.in_flight


def ring_index(slots: Tensor, positions: Tensor, length: int) -> Tensor:
    """Flat ring index; -1 where the slot or the position is negative. Shapes broadcast."""
    return torch.where((slots < 0) | (positions < 0), -1, slots * length + positions % length)


def copy_rings(ring: Tensor, length: int, source: Tensor, target: Tensor) -> None:
    """Copy whole rings: ``source`` [N] to ``target`` [N], numbers of rings; -1 in either copies nothing. A ring's rows
    are where their positions say, so they mean the same in any ring."""
    column = torch.arange(length, device=ring.device)
    moves = (source >= 0) & (target >= 0)
    taken = torch.where(moves, source, 0)[:, None] * length + column
    put = torch.where(moves[:, None], target[:, None] * length + column, ring.shape[0] - 1)
    ring.index_copy_(0, put.flatten(), ring[taken.flatten()])


def entries_per_page(page_size: int, ratio: int) -> int:
    """Entries of one page when ``ratio`` positions make an entry. Raises PlanError if that is not whole."""
    if page_size % ratio:
        raise PlanError(
            f"page_size={page_size} is not a multiple of the compression ratio {ratio}: an entry would straddle"
            f" two pages; use a multiple of {ratio}",
            rule="page-holds-whole-entries",
        )
    return page_size // ratio


def page_index(pages: Tensor, slots: Tensor, entries: Tensor, per_page: int) -> Tensor:
    """Flat index of entry numbers in a paged cache through the block table ``pages`` [N, G].

    -1 where the slot, the entry or the page is missing. slots and entries broadcast to the result's shape.
    """
    slots, entries = torch.broadcast_tensors(slots, entries)
    page = pages[slots.clamp(min=0), (entries.clamp(min=0) // per_page).clamp(max=pages.shape[1] - 1)]
    real = (slots >= 0) & (entries >= 0) & (page >= 0) & (entries < per_page * pages.shape[1])
    return torch.where(real, page * per_page + entries % per_page, -1)
