"""Which row of a packed wave is which: a hand-worked step, and any step as a bijection onto its active rows."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted

from draftline.stages.core import Call, Packed, StageContext
from draftline.stages.verify import Verify

Row = tuple[int, int, int]
"""(slot, position, token)."""


def step(depths: list[int], tile: int, live: list[bool] | None = None) -> tuple[Scripted, dict[str, torch.Tensor]]:
    """All waves of one step: slot n's tail is token 10·n at position 100·n, column c holds token 10·n + c; depth -1 is
    an empty slot. Outputs are -7 where nothing was written. Gives the target with its calls, and the outputs."""
    n, s = len(depths), max(*depths, 0) + 1
    column = torch.arange(s)
    active = column <= torch.tensor(depths)[:, None]
    slot = torch.arange(n)[:, None]
    inputs = {
        "tokens": torch.where(active, 10 * slot + column, 0),
        "positions": torch.where(active, 100 * slot + column, -1),
        "pages": torch.zeros(n, 1, dtype=torch.int64),
        "live": torch.tensor([d >= 0 for d in depths] if live is None else live),
    }
    outputs = {"predicted": torch.full((n, s), -7), "streams": torch.full((n, s, 1, 2), -7.0)}
    target = Scripted(lambda token, position: token + 1)
    verify = Verify(StageContext(torch.device("cpu"), torch.float32, {}, Packed(tile, s), target))
    for wave in range(-(-int(active.sum()) // tile)):
        verify(Call(wave=wave, width=s), inputs, outputs)
    return target, outputs


def test_five_requests_of_three_rows_take_two_waves():
    """T=8, K=2: 15 rows. Wave 0 ends with the second row of slot 2; wave 1 has its third and one pad row."""
    target, outputs = step([2, 2, 2, 2, 2], 8)
    assert target.calls == [
        [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 100, 10), (1, 101, 11), (1, 102, 12), (2, 200, 20), (2, 201, 21)],
        [(2, 202, 22), (3, 300, 30), (3, 301, 31), (3, 302, 32), (4, 400, 40), (4, 401, 41), (4, 402, 42)],
    ]
    assert outputs["predicted"].tolist() == [[10 * n + c + 1 for c in range(3)] for n in range(5)]


def test_unequal_windows_and_an_empty_slot():
    """Depths 0, nobody, 3, 1: seven rows, of which no place is lost to what K allows."""
    target, outputs = step([0, -1, 3, 1], 4)
    assert target.calls == [
        [(0, 0, 0), (2, 200, 20), (2, 201, 21), (2, 202, 22)],
        [(2, 203, 23), (3, 300, 30), (3, 301, 31)],
    ]
    assert outputs["predicted"].tolist() == [[1, -7, -7, -7], [-7] * 4, [21, 22, 23, 24], [31, 32, -7, -7]]


@settings(max_examples=200, deadline=None)
@given(
    slots=st.lists(st.tuples(st.integers(-1, 20), st.booleans()), min_size=1, max_size=9),
    tile=st.integers(1, 17),
)
def test_rows_of_waves_are_the_active_rows_in_order(slots, tile):
    depths = [depth for depth, _ in slots]
    live = [depth >= 0 and flag for depth, flag in slots]
    target, outputs = step(depths, tile, live)
    wanted: list[Row] = [
        (n, 100 * n + c, 10 * n + c) for n, depth in enumerate(depths) if live[n] for c in range(depth + 1)
    ]
    assert [row for call in target.calls for row in call] == wanted
    full, rest = divmod(len(wanted), tile)
    assert [len(call) for call in target.calls if call] == [tile] * full + [rest] * bool(rest)
    written = {(n, p - 100 * n) for n, p, _ in wanted}
    for n in range(len(depths)):
        for c in range(outputs["predicted"].shape[1]):
            there = (n, c) in written
            assert int(outputs["predicted"][n, c]) == ((10 * n + c + 1) % 128 if there else -7)
            assert outputs["streams"][n, c, 0].tolist() == ([10 * n + c, 100 * n + c] if there else [-7, -7])
