"""Row invariance, bitwise: with T fixed, a row's logits do not depend on K, layout, chunk, wave or neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import SIZES, engine_of, run, tiny_model
from recorder import Recorder
from test_lossless import DTYPES, prompt

from draftline.compiler.plan import Kinds
from draftline.stages.models.core import Rows
from draftline.stages.models.deepseek_v4.model import DeepseekV4Target

PROMPTS = [prompt(n, 50 + i) for i, n in enumerate([7, 126, 40, 255])]
NEW = 12
RUNS: list[tuple[int, list[int], Kinds]] = [
    (1, [3, 2, 1, 0], "bxs"),
    (2, [0, 1, 2, 3], "bxs"),
    (3, [1, 3, 0, 2], "bxs"),
    (7, [2, 0, 3, 1], "bxs"),
    (9, [0, 2, 1, 3], "bxs"),
    (4, [1, 0, 3, 2], "packed"),
    (9, [2, 3, 0, 1], "packed"),
]


@pytest.fixture(autouse=True)
def _two_threads(_threads) -> None:
    """A GEMM's split over threads must not show either."""
    torch.set_num_threads(2)


def recorded(k: int, tile: int, dtype: str, order: list[int], max_num_seqs: int, layouts: Kinds = "bxs"):
    """Logits by (prompt, position) of one run."""
    sizes = replace(SIZES, num_speculative_tokens=k, tile=tile, dtype=dtype, max_num_seqs=max_num_seqs, layouts=layouts)
    model = tiny_model(sizes, DTYPES[dtype])
    recorder = Recorder(model.target)
    engine = engine_of(model, sizes)
    slots = {}
    lease = engine.scheduler.slots.lease

    def follow():
        slot = lease()
        slots[len(slots)] = slot.index
        return slot

    engine.scheduler.slots.lease = follow  # type: ignore[method-assign]
    outputs = run(engine, [PROMPTS[i] for i in order], NEW, ignore_eos=True)
    out = {}
    for place, i in enumerate(order):
        tokens = [*PROMPTS[i], *outputs[place].token_ids]
        for position in range(len(PROMPTS[i]) - 1, len(tokens) - 1):
            for token, logits in recorder.rows[slots[place], position]:
                # A slot serves several prompts in turn, and drafts are often wrong: keep rows of this history,
                # that is rows whose token is the committed one. The last write of a position is such a row.
                if token == tokens[position]:
                    out.setdefault((i, position), []).append(logits)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [8, 16])
def test_rows_are_bitwise_the_same_everywhere(tile, dtype):
    truth = recorded(0, tile, dtype, [0, 1, 2, 3], max_num_seqs=4)
    assert len(truth) == len(PROMPTS) * NEW
    seen = 0
    for k, order, layouts in RUNS:
        rows = recorded(k, tile, dtype, order, 4, layouts)
        for key, first in truth.items():
            assert any(torch.equal(first[0], other) for other in rows[key]), (k, key)
            # The committed row is the last one scored at its position.
            assert torch.equal(first[0], rows[key][-1]), (k, key)
            seen += 1
    assert seen == len(RUNS) * len(truth)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [8, 16, 64])
def test_a_row_does_not_feel_its_place_or_its_neighbours(tile, dtype):
    """One call, one row of interest: every place in the tile, neighbours of other slots, or none."""
    sizes = replace(SIZES, max_num_seqs=8, prefill_tile=64)
    g = torch.Generator().manual_seed(9)
    pages = torch.randperm(24, generator=g).view(8, 3)
    ids = torch.randint(2, 256, (8, 200), generator=g)

    def model() -> DeepseekV4Target:
        target = tiny_model(sizes, DTYPES[dtype]).target
        for start in range(0, 131, 64):
            for slot in range(8):
                at = torch.full((64,), -1)
                n = min(64, 131 - start)
                at[:n] = torch.arange(start, start + n)
                target.forward(Rows(ids[slot, at.clamp(min=0)], at, torch.where(at >= 0, slot, -1), pages))
        return target

    def logits(place: int, neighbours: list[tuple[int, int]]) -> torch.Tensor:
        target = models[len(neighbours) > 0]
        at, slots = torch.full((tile,), -1), torch.full((tile,), -1)
        others = iter(neighbours)
        for i in range(tile):
            slot, p = (0, 131) if i == place else next(others, (-1, -1))
            at[i], slots[i] = p, slot
        rows = Rows(torch.where(slots >= 0, ids[slots.clamp(min=0), at.clamp(min=0)], 0), at, slots, pages)
        return target.logits(target.forward(rows))[place]

    with torch.inference_mode():
        models = [model(), model()]
        alone = logits(0, [])
        for place in range(0, tile, max(1, tile // 8)):
            assert torch.equal(logits(place, []), alone), place
            others = [(1 + i % 7, 131) for i in range(min(7, tile - 1))]
            assert torch.equal(logits(place, others), alone), place
