"""Whom a wave serves. Knows: live slots (or active rows) in order, so many lanes per wave. Does not know: models.

Everything is static in shape and stays on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lane_slots(live: Tensor, wave: int, requests: int) -> Tensor:
    """live [N] bool to the slot of each of the wave's B lanes, [B] int64; -1 where nobody is left. Where each row is a
    lane of its own, N counts the rows of all windows and B is the tile."""
    rank = torch.where(live, live.long().cumsum(0) - 1, -1)  # place of each live slot among the live ones
    wanted = torch.arange(requests, device=live.device) + wave * requests
    hit = rank == wanted[:, None]  # [B, N]
    return torch.where(hit.any(1), hit.long().argmax(1), -1)


def merge_lanes(table: Tensor, lanes: Tensor, rows: Tensor) -> None:
    """Put rows [B, …] into table [N, …] at the slots in ``lanes`` [B]; other slots keep what they have."""
    slots = torch.arange(table.shape[0], device=table.device)
    hit = slots[:, None] == lanes  # [N, B]
    served = hit.any(1).view(-1, *(1,) * (table.dim() - 1))
    torch.where(served, rows[hit.long().argmax(1)], table, out=table)
