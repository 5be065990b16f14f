"""The packed layout at run time: the tokens of plain decoding, bitwise the same rows, and exactly as many waves."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import heads
import pytest
import test_llama_lossless as llama
import test_lossless as v4
import torch
from engines import SIZES, engine_of, run, scripted_engine, tiny_model
from scripted import Scripted, Wilful, loaded
from test_worked_example import plus_one

from draftline.graph.errors import PlanError
from draftline.runtime.cli import main
from draftline.runtime.observe import Observer
from draftline.runtime.pipeline import RunOptions, open_pipeline
from draftline.runtime.rows import Rows, rows_of

PACKED = replace(SIZES, layouts="packed", max_num_seqs=5)
NGRAM = "ngram.yaml"
CASES = [
    (1, 8, "fp32", "mtp.yaml"),
    (2, 8, "bf16", "mtp.yaml"),
    (3, 8, "fp32", "mtp.yaml"),
    (4, 8, "fp32", "mtp.yaml"),
    (9, 8, "bf16", "mtp.yaml"),
    (20, 8, "fp32", "mtp.yaml"),
    (4, 16, "fp32", "mtp.yaml"),
    (20, 16, "fp32", "mtp.yaml"),
    (0, 8, "fp32", "ar.yaml"),
    (4, 8, "fp32", NGRAM),
    (9, 8, "bf16", NGRAM),
]


@pytest.mark.parametrize(("k", "tile", "dtype", "graph"), CASES)
def test_tokens_equal_plain_decoding(k, tile, dtype, graph):
    """A random V4 with every layer kind; prompts with their tail at every cache boundary and near the limit."""
    sizes = replace(PACKED, num_speculative_tokens=k, tile=tile, dtype=dtype)
    engine = engine_of(tiny_model(sizes, v4.DTYPES[dtype]), sizes, graph)
    captured = engine.runtime.captures
    outputs = run(engine, v4.PROMPTS[::2], v4.NEW, ignore_eos=True)
    assert [(o.token_ids, o.finish_reason) for o in outputs] == v4.plain(dtype, tile)[::2]
    assert engine.num_free_pages == engine.sizes.geometry().num_pages
    assert engine.runtime.captures == captured
    assert {str(b.plan.layout.chosen) for b in engine.runtime.bound[:-2]} == {f"packed T{tile}"}


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize(("k", "slots"), [(1, 9), (2, 5), (4, 3), (9, 2)])
def test_llama_tokens_equal_plain_decoding(k, slots, kernels):
    sizes = replace(llama.SIZES, num_speculative_tokens=k, dtype="bf16", max_num_seqs=slots, layouts="packed")
    engine = engine_of(heads.model("llama", sizes, kernels, torch.bfloat16), sizes)
    outputs = run(engine, llama.PROMPTS, llama.NEW, ignore_eos=True)
    assert [o.token_ids for o in outputs] == llama.plain(kernels, "bf16")


@pytest.mark.parametrize("tile", [5, 7, 12])
def test_odd_tiles_with_an_adversarial_drafter(tile):
    """Drafts that are right for a while commit rows that straddled waves."""

    def next_token(token: int, position: int) -> int:
        return (token * 7 + position + 1) % 120

    prompts = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5], list(range(40))]
    plain = run(scripted_engine(Scripted(next_token), None, "ar.yaml", num_speculative_tokens=0), prompts, 33)
    for k in (2, 6, 11):
        drafter = Wilful(lambda t, p: next_token(t, p) if p % 7 < 5 else 0)
        sizes = {"num_speculative_tokens": k, "tile": tile, "layouts": "packed", "max_num_seqs": 3}
        outputs = run(scripted_engine(Scripted(next_token), drafter, **sizes), prompts, 33)
        assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
        assert sum(o.counts.num_accepted_tokens for o in outputs) > 0


def test_worked_example():
    """The design's example, T=8, K=9: 20 rows in 3 waves. All of a and b is verified at once, so a is never alone."""

    def draft(token: int, position: int) -> int:
        return 99 if token == 21 else token + 1

    target = Scripted(plus_one)
    sizes = {"num_speculative_tokens": 9, "max_num_seqs": 2, "prefill_tile": 128, "layouts": "packed"}
    engine = scripted_engine(target, Wilful(draft), **sizes)
    outputs = run(engine, [[1] * 98 + [8, 9], [1] * 98 + [18, 19]], max_new_tokens=50, ignore_eos=True)
    decode = target.calls[2:]
    a = [(0, 99 + i, 9 + i) for i in range(10)]
    b = [(1, 99 + i, t) for i, t in enumerate([19, 20, 21, 99, 100, 101, 102, 103, 104, 105])]
    assert decode[:3] == [a[:8], a[8:] + b[:6], b[6:]]
    # Step 2 starts from the new tails: 19 at 109 and 22 at 102.
    assert (decode[3][0], decode[4][2]) == ((0, 109, 19), (1, 102, 22))
    assert list(outputs[0].token_ids[:10]) == list(range(10, 20))
    assert list(outputs[1].token_ids[:3]) == [20, 21, 22]


class Counted(Observer):
    """Adds up the rows of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Rows] = []

    def stepped(self, runtime, plan, began, batch) -> None:
        self.steps.append(rows_of(plan, batch))


def counted(layouts: str, k: int, slots: int, graph: str = "mtp.yaml") -> tuple[list[Rows], Scripted, int]:
    """Rows per step as they were counted, the target, and its verify calls. Every draft is right."""
    target = Scripted(plus_one)
    sizes = {"num_speculative_tokens": k, "max_num_seqs": slots, "layouts": layouts, "prefill_tile": 64}
    engine = scripted_engine(target, Wilful(plus_one) if graph == "mtp.yaml" else None, graph, **sizes)
    observer = engine.observer = Counted()
    run(engine, [[1 + n, 2 + n] for n in range(slots)], max_new_tokens=12, ignore_eos=True)
    return observer.steps, target, engine.runtime.totals.waves


@pytest.mark.parametrize("graph", ["mtp.yaml", NGRAM])
@pytest.mark.parametrize(("k", "slots"), [(2, 5), (4, 4), (9, 3), (0, 9)])
def test_counted_rows_are_the_rows_of_the_calls(k, slots, graph):
    steps, target, waves = counted("packed", k, slots, graph if k else "ar.yaml")
    verify = target.calls[len(target.calls) - waves :]
    assert sum(r.waves for r in steps) == waves
    assert sum(r.real for r in steps) == sum(map(len, verify))
    assert sum(r.real + r.pad for r in steps) == 8 * waves
    assert min(map(len, verify)) > 0  # no wave without anybody


def test_fewer_waves_than_whole_requests_take():
    """K=2, five requests: 15 rows. B2×S4 takes three waves with 9 pad rows, packed two with one. 12 tokens, 4 steps."""
    assert counted("packed", 2, 5)[0] == [Rows(2, 15, 1)] * 4
    assert counted("bxs", 2, 5)[0] == [Rows(3, 15, 9)] * 4
    assert counted("any", 2, 5)[0] == [Rows(2, 15, 1)] * 4  # the price chose it


class Streams:
    """Keeps the streams of every row that the target computed: (slot, position, token) → [H, D] each."""

    def __init__(self, target) -> None:
        self._forward = target.forward
        self.rows: dict[tuple[int, int, int], list[torch.Tensor]] = defaultdict(list)
        target.forward = self.forward

    def forward(self, rows):
        out = self._forward(rows)
        for i, key in enumerate(zip(rows.slots.tolist(), rows.positions.tolist(), rows.tokens.tolist(), strict=True)):
            if key[0] >= 0:
                self.rows[key].append(out[i].clone())
        return out


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_streams_of_a_row_are_bitwise_the_same(kernels):
    """Alone at K=0, in B×S with others, and packed with others: the last row at every committed position."""
    prompts, new = llama.PROMPTS[2:5], 8

    def streams(k: int, layouts: str, which: list[int]) -> dict[tuple[int, int], torch.Tensor]:
        sizes = replace(llama.SIZES, num_speculative_tokens=k, dtype="bf16", layouts=layouts, max_num_seqs=len(which))
        model = heads.model("llama", sizes, kernels, torch.bfloat16)
        seen = Streams(model.target)
        outputs = run(engine_of(model, sizes), [prompts[i] for i in which], new, ignore_eos=True)
        out = {}
        for slot, i in enumerate(which):
            tokens = [*prompts[i], *outputs[slot].token_ids]
            for p in range(len(prompts[i]) - 1, len(tokens) - 1):
                out[i, p] = seen.rows[slot, p, tokens[p]][-1]
        return out

    alone = {key: row for i in range(3) for key, row in streams(0, "bxs", [i]).items()}
    assert len(alone) == 3 * new
    for k, layouts in ((2, "bxs"), (2, "packed"), (4, "packed"), (9, "packed")):
        together = streams(k, layouts, list(range(3)))
        assert together.keys() == alone.keys()
        assert all(torch.equal(together[key], row) for key, row in alone.items()), (k, layouts)


def test_a_model_without_slots_per_row_is_refused():
    sizes = replace(SIZES, layouts="packed")
    model = loaded(Scripted(plus_one), Wilful(plus_one), sizes.geometry())
    with pytest.raises(PlanError, match="RowsNeedSlots: the model's kernels do not take a slot") as caught:
        engine_of(replace(model, shape=replace(model.shape, slot_per_row=False)), sizes)
    assert caught.value.rule == "RowsNeedSlots"


def test_a_trace_says_who_was_in_a_wave(tmp_path):
    """K=2, five requests: request 2 has rows in both waves."""
    path = tmp_path / "t.json"
    wishes = {"num_speculative_tokens": 2, "max_num_seqs": 5, "layouts": "packed"}
    with open_pipeline("mtp.yaml", RunOptions(trace=path), **wishes) as pipeline:
        pipeline.generate(["def f(x):"] * 5, max_new_tokens=12, ignore_eos=True)
    waves = [
        (e["args"]["wave"], e["args"]["requests"])
        for e in json.loads(path.read_text())["traceEvents"]
        if e["ph"] == "X" and "wave" in e.get("args", {})
    ]
    assert waves[:2] == [(0, [0, 1, 2]), (1, [2, 3, 4])]


def test_the_flag(capsys):
    common = ["--graph", "mtp.yaml", "--prompt", "def read(", "--max-new-tokens", "20", "--no-plan-cache", "-K", "4"]
    texts = []
    for flags in ([], ["--layouts", "packed"], ["--set", "settings.layouts=any"]):
        assert main([*common, *flags]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
    assert main([*common, "--layouts", "any", "--explain"]) == 0
    assert "layout packed T8" in capsys.readouterr().out
    assert main([*common, "--layouts", "pakced"]) == 2
    assert "invalid choice: 'pakced'" in capsys.readouterr().err
    assert main([*common, "--set", "settings.layouts=tight"]) == 2
    assert "layouts" in capsys.readouterr().err
