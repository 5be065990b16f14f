"""Whom a wave serves. Knows: live slots (or active rows) in order, so many lanes per wave. Does not know: models.

Everything is static in shape and stays on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lane_slots(live: Tensor, wave: int, requests: int) -> Tensor:
    """live [N] bool to the slot of each of the wave's B lanes, [B] int64; -1 where nobody is left. Where each row is a
    lane of its own, N counts the rows of all windows and B is the tile."""
    wanted = torch.arange(1 + wave * requests, 1 + (wave + 1) * requests, device=live.device)
    hit = (live.cumsum(0) == wanted[:, None]) & live  # [B, N]: slot n is the one that lane b is for
    found, slot = hit.max(1)
    return torch.where(found, slot, -1)


def merge_lanes(lanes: Tensor, *pairs: tuple[Tensor, Tensor]) -> None:
    """For each pair of a table [N, …] and rows [B, …], put the rows into the table at the slots in ``lanes`` [B]; other
    slots keep what they have."""
    slots = torch.arange(len(pairs[0][0]), device=lanes.device)
    served, lane = (slots[:, None] == lanes).max(1)  # [N]
    for table, rows in pairs:
        torch.where(served.view(-1, *(1,) * (table.dim() - 1)), rows[lane], table, out=table)
