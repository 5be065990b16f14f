"""The zmq runtime gives the tokens, acceptance and verify calls of the inline one, in the hops that the plan says.

The truth for tokens is K=0 in this process. The random model of test_lossless.py is the hard case: nearly all of its
drafts are wrong, and its logits are flat.
"""

from __future__ import annotations

import functools
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import traps
import zmq.auth
from decoding import NEW, PROMPTS, decode
from engines import SIZES, engine_of, tiny_model

from draftline.compiler.plan import Plan
from draftline.graph.core import Graph
from draftline.graph.errors import WorkerLostError
from draftline.graph.yaml import load_graph
from draftline.runtime.deployment import Compiler
from draftline.runtime.engine import Engine
from draftline.runtime.observe import Observer
from draftline.runtime.pipeline import Pipeline, RunOptions, open_pipeline
from draftline.runtime.replicas import generate
from draftline.runtime.request import Output, Request
from draftline.runtime.workers import messages
from draftline.runtime.workers.group import WorkerGroup
from draftline.runtime.workers.launch import Launch
from draftline.runtime.workers.roster import Roster

PLACES = {
    ("mtp", 1): {"draft": "cpu:0"},
    ("mtp", 2): {"draft": "cpu:0", "pad": "cpu:0", "check": "cpu:1", "commit": "cpu:1"},
    ("mtp", 3): {"draft": "cpu:0", "pad": "cpu:2", "verify": "cpu:1", "accept": "cpu:2", "commit": "cpu:2"},
    ("ngram", 2): {"draft": "cpu:1", "verify": "cpu:0"},
    ("ar", 2): {"verify": "cpu:1", "commit": "cpu:0"},
}


def placed(graph: str, workers: int) -> Graph:
    return replace(load_graph(f"{graph}.yaml"), placement=tuple(PLACES[graph, workers].items()))


class Hops(Observer):
    """Adds up what the plans predict."""

    def __init__(self) -> None:
        super().__init__()
        self.hops = 0

    def filled(self, runtime, plan: Plan, began, rows) -> None:
        self.hops += plan.hops

    def stepped(self, runtime, plan: Plan, began, batch) -> None:
        self.hops += plan.hops


def run(pipeline: Pipeline) -> list[Output]:
    requests = [pipeline.request(p, NEW, ignore_eos=True) for p in PROMPTS]
    requests[1] = replace(requests[1], num_speculative_tokens=1)
    return pipeline.run(requests)


def plain(dtype: str) -> list[tuple[int, ...]]:
    with open_pipeline("ar.yaml", max_num_seqs=3, dtype=dtype) as pipeline:
        return [o.token_ids for o in run(pipeline)]


plain = functools.cache(plain)

CASES = [
    ("mtp", 0, "fp32", 1, False),
    ("mtp", 1, "bf16", 2, True),
    ("mtp", 3, "fp32", 1, True),
    ("mtp", 3, "bf16", 3, False),
    ("mtp", 7, "fp32", 2, True),
    ("mtp", 8, "bf16", 2, True),
    ("mtp", 9, "fp32", 3, True),
    ("mtp", 9, "bf16", 2, False),
    ("mtp", 20, "fp32", 2, True),
    ("ngram", 4, "fp32", 2, True),
    ("ngram", 9, "bf16", 2, True),
    ("ar", 0, "bf16", 2, True),
]


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("graph", "k", "dtype", "workers", "overlap"), CASES)
def test_zmq_equals_inline(clean, monkeypatch, graph, k, dtype, workers, overlap):
    wishes = {"num_speculative_tokens": k, "dtype": dtype, "max_num_seqs": 2, "overlap": overlap}
    wishes["async_scheduling"] = overlap  # a step that begins ahead may take the plan of a deeper one
    with open_pipeline(placed(graph, workers), runtime="inline", **wishes) as pipeline:
        inline = run(pipeline)
        waves = pipeline.engine.runtime.totals.waves
    with open_pipeline(placed(graph, workers), runtime="zmq", **wishes) as pipeline:
        engine = pipeline.engine
        observer, runtime = Hops(), engine.runtime
        monkeypatch.setattr(engine, "observer", observer)
        monkeypatch.setattr(engine, "_filling", replace(engine._filling, observer=observer))
        captures = runtime.captures
        assert len(runtime.pids) == workers
        outputs = run(pipeline)
        totals = runtime.totals
        assert [o.token_ids for o in outputs] == [o.token_ids for o in inline] == plain(dtype)
        assert [o.counts for o in outputs] == [o.counts for o in inline]
        assert totals.hops == observer.hops > 0
        assert (totals.late, totals.refused, totals.restarts) == (0, 0, 0)
        assert runtime.captures == captures > 0  # none after warm-up
        if not overlap:
            assert totals.waves == waves


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("k", "workers"), [(0, 1), (3, 1), (3, 2), (9, 2)])
def test_steps_that_begin_ahead_in_workers(clean, monkeypatch, k, workers):
    wishes = {"num_speculative_tokens": k, "max_num_seqs": 2}
    with open_pipeline(placed("mtp", workers), runtime="zmq", **wishes) as pipeline:
        runtime, ahead = pipeline.engine.runtime, 0
        start = runtime.start

        def counted(bound, follows=False):
            nonlocal ahead
            ahead += follows
            return start(bound, follows)

        monkeypatch.setattr(runtime, "start", counted)
        assert [o.token_ids for o in run(pipeline)] == plain("fp32")
        assert ahead > 10
        [again] = pipeline.generate([PROMPTS[0]], max_new_tokens=NEW, ignore_eos=True)
        assert again.token_ids == plain("fp32")[0]
        assert (runtime.totals.late, runtime.totals.refused, runtime.totals.restarts) == (0, 0, 0)


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("k", "workers", "overlap"), [(9, 2, True), (5, 3, False)])
def test_a_random_model_in_workers_equals_plain_decoding(clean, k, workers, overlap):
    """Its loader is a function of this suite: by name to the workers, which import it."""
    g = torch.Generator().manual_seed(k)
    prompts = [torch.randint(2, 256, (n,), generator=g).tolist() for n in (1, 9, 127, 256, 379)]
    truth = engine_of(tiny_model(SIZES), replace(SIZES, num_speculative_tokens=0), "ar.yaml")
    requests = [Request(tuple(p), 9, ignore_eos=True) for p in prompts]
    sizes = replace(SIZES, num_speculative_tokens=k, overlap=overlap)
    compiler = Compiler(sizes, tiny_model(sizes).shape)
    with WorkerGroup(Launch("none", sizes, compiler.lookup, load=tiny_model)) as group:
        engine = Engine(placed("mtp", workers), load_graph("prefill-mtp.yaml"), compiler, group)
        got = [(o.token_ids, o.finish_reason) for o in generate([engine], requests)]
    assert got == [(o.token_ids, o.finish_reason) for o in generate([truth], requests)]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("host", ["127.0.0.1", "lo"])
def test_tcp_with_curve_keys_gives_the_same_tokens(clean, truth, tmp_path, host):
    keys = secret(tmp_path)
    options = RunOptions(transport=f"tcp://{host}", curve_keys=keys)
    with open_pipeline(placed("mtp", 3), options, runtime="zmq", overlap=True, num_speculative_tokens=9) as pipeline:
        assert decode(pipeline) == truth
        assert pipeline.engine.runtime.totals.refused == 0
        listening = pipeline.engine.runtime._roster._inbox.get_string(zmq.LAST_ENDPOINT)
        assert listening.startswith("tcp://127.0.0.1:")


def secret(folder: Path) -> Path:
    path = Path(zmq.auth.create_certificates(folder, "draftline")[1])
    path.chmod(0o600)
    return path


@pytest.mark.timeout(60)
def test_a_step_may_come_before_the_word_where_the_others_are(clean, truth, monkeypatch):
    """Peers and signals come by different connections, so nothing orders them. Here the first step always wins."""
    post, held = Roster.post, []

    def late(self, worker, message, tensors=()):
        if isinstance(message, messages.Peers):
            held.append((worker, message))
            return
        post(self, worker, message, tensors)
        while held:
            post(self, *held.pop())

    monkeypatch.setattr(Roster, "post", late)
    with open_pipeline(placed("mtp", 2), runtime="zmq", overlap=True, num_speculative_tokens=9) as pipeline:
        assert decode(pipeline) == truth
        assert pipeline.engine.runtime.totals.restarts == 0


# -- replicas ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(90)
@pytest.mark.parametrize("runtime", ["inline", "zmq"])
def test_three_replicas_give_the_same_tokens(clean, truth, runtime):
    with open_pipeline("mtp.yaml", replicas=3, runtime=runtime, max_num_seqs=1) as pipeline:
        assert decode(pipeline) == truth
        assert len({id(engine.runtime) for engine in pipeline.engines}) == 3
        assert all(engine.runtime.totals.steps > 0 for engine in pipeline.engines)
        assert decode(pipeline) == truth


@pytest.mark.timeout(90)
def test_a_replica_does_not_wait_for_another(clean, truth, tmp_path, monkeypatch):
    """A stage of one replica goes on only once the other replica's request is done."""
    flag, done = tmp_path / "flag", tmp_path / "done"
    graph = traps.with_trap(load_graph("mtp.yaml"), "verify", flag=str(flag))
    wishes = {"replicas": 2, "runtime": "zmq", "max_num_seqs": 1, "stage_timeout": 10.0}
    with open_pipeline(graph, **wishes) as pipeline:
        given, errors = [0, 0], []
        for engine in pipeline.engines:
            monkeypatch.setattr(engine.observer, "failed", errors.append)
        flag.write_text(f"wait {done}")

        def listen(delta):
            index, tokens = delta.index, delta.token_ids
            given[index] += len(tokens)
            if given[index] == NEW:
                done.touch()

        outputs = pipeline.generate(PROMPTS[:2], listen, max_new_tokens=NEW, ignore_eos=True)
        assert [o.token_ids for o in outputs] == truth[:2]
        assert errors == []


@pytest.mark.timeout(90)
def test_a_replica_that_is_down_for_good_hands_its_requests_on(clean, truth):
    with open_pipeline("mtp.yaml", replicas=2, runtime="zmq", max_num_seqs=2, max_restarts=0) as pipeline:
        given = 0

        def listen(delta):
            tokens = delta.token_ids
            nonlocal given
            given += len(tokens)
            if given > 8 and given - len(tokens) <= 8:
                os.kill(pipeline.engines[0].runtime.pids[0], signal.SIGKILL)

        assert decode(pipeline, listen) == truth
        assert decode(pipeline) == truth  # the other one alone
        os.kill(pipeline.engines[1].runtime.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="failed 1 times in a row") as error:
            decode(pipeline)
        assert [o.finish_reason for o in error.value.outputs] == ["error"] * 3
