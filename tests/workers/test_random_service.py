"""Requests come and are cancelled while pages are short and workers are killed: K=0's tokens, and all pages free."""

from __future__ import annotations

import os
import random
import signal

import pytest

from draftline.runtime.pipeline import open_pipeline

TEXTS = [
    "import os\nimport sys\n" * 9,
    "import os\nimport sys\n" * 9 + "def f(x):",
    "class Stack:",
    "x = [1, 2, 3]\n" * 30,
]
NEW, MOVES = 60, 60


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("k", "seed"), [(0, 3), (9, 1)])
def test_nothing_leaks_and_nothing_is_wrong(clean, k, seed):
    chance = random.Random(seed)
    wishes = {"max_model_len": 512, "max_num_seqs": 3}
    with open_pipeline("ar.yaml", **wishes) as plain:
        truth = [o.token_ids for o in plain.generate(TEXTS, max_new_tokens=NEW, ignore_eos=True)]
    with open_pipeline(
        "mtp.yaml", runtime="zmq", num_speculative_tokens=k, num_pages=5, max_num_batched_tokens=96, **wishes
    ) as pipeline:
        engine, outputs, asked, kills = pipeline.engine, {}, {}, 0
        for move in range(MOVES):
            what = chance.choices(("add", "cancel", "kill", "step"), (4, 1, 0.4, 8))[0]
            if what == "add" and engine.num_free:
                asked[move] = chance.randrange(len(TEXTS)), chance.choice((1, 7, NEW))
                engine.add(move, pipeline.request(TEXTS[asked[move][0]], asked[move][1], ignore_eos=True))
            elif what == "cancel" and asked.keys() - outputs.keys():
                engine.cancel(chance.choice(sorted(asked.keys() - outputs.keys())))
            elif what == "kill":
                os.kill(chance.choice(engine.runtime.pids), signal.SIGKILL)
                kills += 1
            outputs |= {o.index: o for o in engine.step()} if engine.num_unfinished else {}
        while engine.num_unfinished:
            outputs |= {o.index: o for o in engine.step()}
        assert outputs.keys() == asked.keys()
        for index, output in outputs.items():
            text, new = asked[index]
            assert output.token_ids == truth[text][: len(output.token_ids)]
            assert output.finish_reason == "abort" or len(output.token_ids) == new
        assert {o.finish_reason for o in outputs.values()} == {"abort", "length"}
        assert kills > 0
        assert 0 < engine.runtime.totals.restarts <= kills
        assert engine.num_free_pages == 5
        assert engine.scheduler.slots.num_free == 3
        assert (engine.scheduler.table == -1).all()


@pytest.mark.timeout(120)
def test_what_a_dead_worker_knew_is_not_found(clean):
    """A prefix of two pages is shared, until the worker that holds it dies: its caches begin empty."""
    texts = ["import os\nimport sys\n" * 45 + end for end in ("", "def f(x):", "class Stack:")]
    with open_pipeline("ar.yaml", max_num_seqs=1) as plain:
        truth = [o.token_ids for o in plain.generate(texts, max_new_tokens=12, ignore_eos=True)]
    with open_pipeline("mtp.yaml", runtime="zmq", num_speculative_tokens=3, max_num_seqs=2) as pipeline:
        runtime, usage = pipeline.engine.runtime, pipeline.engine.scheduler.prefix.usage
        assert pipeline.prepared.sizes.page_size * 2 < len(pipeline.text.encode(texts[0]))
        hits = []
        for i, kills in ((0, False), (1, False), (2, True), (1, False)):
            if kills:
                os.kill(runtime.pids[0], signal.SIGKILL)
                [dead] = pipeline.generate(["x"], max_new_tokens=1)  # somebody notices
                assert dead.finish_reason == "length"
            before = usage.hits
            [output] = pipeline.generate([texts[i]], max_new_tokens=12, ignore_eos=True)
            assert output.token_ids == truth[i]
            hits.append(usage.hits - before)
        assert runtime.totals.restarts == 1
        assert hits[0] == hits[2] == 0
        assert hits[1] > 0
        assert hits[3] > 0
