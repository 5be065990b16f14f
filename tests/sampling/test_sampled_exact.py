"""A seed's text is the same, token by token and log-probability by log-probability, at every K and in every layout,
batch, slot and runtime, and after a failure. tiny-v4's real MTP layer drafts: windows are accepted in part and whole.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import heads
import pytest
import torch
from decoding import killing
from engines import SIZES, engine_of, tiny, tiny_model

from benchmarks.training import forward
from draftline.graph.yaml import load_graph
from draftline.runtime.adaptive import DepthPolicy, StepCost
from draftline.runtime.pipeline import Pipeline, open_pipeline
from draftline.runtime.replicas import generate
from draftline.runtime.request import Output, Request
from draftline.stages.sampling.params import SamplingParams

NEW = 20
WANTED = [
    SamplingParams(temperature=1.0, seed=7, logprobs=3),
    SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=3),
    SamplingParams(),
    SamplingParams(
        temperature=1.0,
        top_k=20,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        min_tokens=5,
        bad_words=((3, 4), (9,)),
        logit_bias=((5, 1.5),),
        seed=-1,
    ),
    SamplingParams(repetition_penalty=1.4, logprobs=0),
    SamplingParams(temperature=0.5, min_p=0.1, seed=7),
]


def requests(pipeline: Pipeline) -> list[Request]:
    return [pipeline.request(f"def read_{i}(path):", NEW, sampling=p) for i, p in enumerate(WANTED)]


def told(outputs: list[Output]) -> list[tuple]:
    assert [o.error for o in outputs] == [None] * len(outputs)
    return [(o.token_ids, o.finish_reason, o.stop_reason, o.logprobs) for o in outputs]


@functools.cache
def plain(kernels: str = "auto") -> list[tuple]:
    """K=0, one request at a time: the truth."""
    with open_pipeline("ar.yaml", num_speculative_tokens=0, max_num_seqs=1, kernels=kernels) as pipeline:
        return told(pipeline.run(requests(pipeline)))


@pytest.mark.parametrize(
    ("graph", "k", "options"),
    [
        ("mtp.yaml", 0, {}),
        ("mtp.yaml", 1, {"tile": 16}),
        ("mtp.yaml", 3, {}),
        ("mtp.yaml", 3, {"max_num_seqs": 2}),
        ("mtp.yaml", 9, {"tile": 16, "max_num_seqs": 5}),
        ("mtp.yaml", 9, {"layouts": "packed"}),
        ("mtp.yaml", 1, {"layouts": "packed", "tile": 16}),
        ("ngram.yaml", 4, {}),
        ("mtp.yaml", 3, {"runtime": "zmq"}),
        ("mtp-zmq.yaml", 9, {}),
        ("mtp-sampled.yaml", 0, {}),
    ],
)
def test_text_is_that_of_plain_decoding(graph, k, options):
    with open_pipeline(graph, num_speculative_tokens=k, **{"max_num_seqs": 8, **options}) as pipeline:
        outputs = pipeline.run(requests(pipeline))
    assert told(outputs) == plain()
    if k > 1 and graph != "ngram.yaml":
        assert outputs[0].counts.num_accepted_tokens > 0


def test_reference_kernels_too():
    with open_pipeline("mtp.yaml", num_speculative_tokens=9, kernels="reference", layouts="packed") as pipeline:
        assert told(pipeline.run(requests(pipeline))) == plain("reference")


def test_other_slots_and_other_neighbours():
    """In another order, with strangers before and between, in an engine that has run before."""
    with open_pipeline("mtp.yaml", num_speculative_tokens=3, max_num_seqs=3) as pipeline:
        mine = requests(pipeline)
        strangers = [pipeline.request("x = [", 9, sampling=replace(p, seed=99)) for p in WANTED]
        mixed = [one for pair in zip(strangers, reversed(mine), strict=True) for one in pair]
        assert told(pipeline.run(mixed)[1::2][::-1]) == plain()


def test_greedy_tokens_in_a_mixed_wave_are_those_of_a_greedy_one():
    with open_pipeline("mtp.yaml", num_speculative_tokens=3, max_num_seqs=8) as pipeline:
        greedy = [pipeline.request(f"class C{i}:", NEW) for i in range(4)]
        alone = [o.token_ids for o in pipeline.run(greedy)]
        hot = [replace(r, sampling=SamplingParams(temperature=2.0, seed=i)) for i, r in enumerate(greedy)]
        assert [o.token_ids for o in pipeline.run([*hot, *greedy])][4:] == alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_likeliest_of_the_logits_is_the_greedy_token(dtype):
    """What lets a mixed wave take one call; native kernels: tests/stages/test_output_matrix.py."""
    target = tiny_model(SIZES, dtype).target
    shape = (8, target.num_streams, target.hidden_size)
    for seed in range(20):
        streams = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        streams[5:] = streams[5:].round()
        assert torch.equal(target.logits(streams).argmax(-1), target.greedy(streams))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_llama_with_a_head_on_both_kinds_of_kernels(kernels, dtype):
    asked = [Request((5, 9, 20 + i), NEW, ignore_eos=True, sampling=p) for i, p in enumerate(WANTED)]
    got = []
    for k in (0, 4, 9):
        name = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
        sizes = replace(SIZES, num_speculative_tokens=k, max_num_seqs=4, max_model_len=192, page_size=64, dtype=name)
        got.append(told(generate([engine_of(heads.model("llama", sizes, kernels, dtype), sizes)], asked)))
    assert got[0] == got[1] == got[2]


def test_a_journal_is_all_that_another_engine_needs():
    """Requests that an engine had begun, also within their min_tokens, end on another one as if nothing had been."""
    sizes = replace(SIZES, num_speculative_tokens=3, max_num_seqs=6)
    begun = [Request((5, 9, 20 + i), NEW, ignore_eos=True, sampling=p) for i, p in enumerate(WANTED)]
    whole = generate([engine_of(tiny_model(sizes), sizes)], begun)
    first, second = (engine_of(tiny_model(sizes), sizes) for _ in range(2))
    for i, request in enumerate(begun):
        first.add(i, request)
    for _ in range(3):
        first.step()
    lives = first.withdraw()
    assert all(0 < live.made < NEW for live in lives)
    for live in reversed(lives):
        second.adopt(live)
    outputs = []
    while second.num_unfinished:
        outputs += second.step()
    assert told(sorted(outputs, key=lambda o: o.index)) == told(whole)


def test_a_depth_that_changes_every_step_changes_nothing():
    """With steps at K=0 between, which a drafter has not seen."""
    sizes = replace(SIZES, num_speculative_tokens=5, max_num_seqs=4)
    asked = [Request((5, 9, 20 + i), NEW, ignore_eos=True, sampling=p) for i, p in enumerate(WANTED)]
    rng = random.Random(1)

    class Wild(DepthPolicy):
        def choose(self, batch, least=0):
            return max(least, rng.randint(0, min(max(cap for _, cap in batch), 5)))

    costs = [StepCost(k, 1, 1.0) for k in range(6)]
    engine = engine_of(tiny_model(sizes), sizes, policy=Wild(costs, 5))
    whole = generate([engine_of(tiny_model(sizes), sizes)], asked)
    assert told(generate([engine], asked)) == told(whole)


def test_a_worker_that_is_killed_changes_nothing():
    """The one that verifies, in the middle; what it knew of the requests is in the next step's metadata."""
    with open_pipeline("mtp-zmq.yaml", num_speculative_tokens=3, max_num_seqs=8) as pipeline:
        outputs = pipeline.run(requests(pipeline), killing(pipeline, 1, after=9))
        assert pipeline.engine.runtime.totals.restarts == 1
    assert told(outputs) == plain()


def test_a_failed_step_changes_nothing(monkeypatch):
    """The step is run again from the journal, one request at a time."""
    sizes = replace(SIZES, num_speculative_tokens=3, max_num_seqs=6)
    asked = [Request((5, 9, 20 + i), NEW, ignore_eos=True, sampling=p) for i, p in enumerate(WANTED)]
    whole = told(generate([engine_of(tiny_model(sizes), sizes)], asked))
    engine = engine_of(tiny_model(sizes), sizes)
    target, calls = engine.runtime.model.target, 0
    logits = target.logits

    def fails_once(streams):
        nonlocal calls
        calls += 1
        if calls == 9:
            raise RuntimeError("once")
        return logits(streams)

    monkeypatch.setattr(target, "logits", fails_once)
    assert told(generate([engine], asked)) == whole
    assert calls > 9


@pytest.mark.parametrize("k", [0, 3, 9])
def test_logprobs_are_the_targets_own(k):
    """Against log_softmax over one forward pass without any cache: of every token, bonus or accepted draft, before the
    temperature, the penalties and the bias; with rank and the likeliest tokens."""
    sizes = replace(SIZES, num_speculative_tokens=k, max_num_seqs=2)
    params = SamplingParams(temperature=0.7, top_k=30, repetition_penalty=1.1, logit_bias=((4, 3.0),), logprobs=5)
    asked = [Request((7, 30 + i, 12, 5), NEW, ignore_eos=True, sampling=replace(params, seed=i)) for i in range(3)]
    c, w = tiny()
    for output in generate([engine_of(tiny_model(sizes), sizes)], asked):
        ids = torch.tensor([[*output.prompt, *output.token_ids]])
        with torch.no_grad():
            streams, _, _ = forward.trunk(c, w, ids, forward.tables(c, ids.shape[1]))
            want = forward.head(c, w, streams)[0].double().log_softmax(-1)
        assert len(output.logprobs) == len(output.token_ids) == NEW
        for i, (token, one) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
            row = want[len(output.prompt) - 1 + i]
            assert one.token == token
            assert one.logprob == pytest.approx(float(row[token]), abs=2e-4)
            assert one.logprob < 0
            assert int((row > row[token] + 1e-4).sum()) < one.rank <= int((row > row[token] - 1e-4).sum()) + 1
            assert [v for _, v in one.top] == pytest.approx(row.topk(5).values.tolist(), abs=2e-4)
            assert all(v == pytest.approx(float(row[t]), abs=2e-4) for t, v in one.top)


def test_deltas_carry_their_tokens_logprobs():
    sizes = replace(SIZES, num_speculative_tokens=3, max_num_seqs=2)
    asked = [Request((7, 8), NEW, ignore_eos=True, sampling=p) for p in (WANTED[0], WANTED[1])]
    deltas = []
    outputs = generate([engine_of(tiny_model(sizes), sizes)], asked, deltas.append)
    assert all(len(d.logprobs) == len(d.token_ids) for d in deltas if d.index == 0)
    assert all(d.logprobs == () for d in deltas if d.index == 1)
    assert tuple(one for d in deltas if d.index == 0 for one in d.logprobs) == outputs[0].logprobs


@pytest.mark.parametrize("options", [{}, {"layouts": "packed"}, {"tile": 16}, {"runtime": "zmq"}, {"max_num_seqs": 2}])
def test_drawn_drafts_give_the_same_text_wherever_they_run(options):
    """At one K: a drawn draft has a say in what follows it, so another K is another draw of the same law."""
    with open_pipeline("mtp-sampled.yaml", num_speculative_tokens=3, **{"max_num_seqs": 8, **options}) as pipeline:
        outputs = pipeline.run(requests(pipeline))
    got = told(outputs)
    assert got == _drawn()
    for i in (2, 4):  # at temperature 0 nothing is drawn
        assert got[i] == plain()[i]


@functools.cache
def _drawn() -> list[tuple]:
    with open_pipeline("mtp-sampled.yaml", num_speculative_tokens=3, max_num_seqs=1) as pipeline:
        return told(pipeline.run(requests(pipeline)))


def test_overlap_of_drawn_drafts_is_refused():
    from draftline.graph.errors import PlanError

    graph = load_graph("mtp-sampled.yaml")
    apart = (("check", "cpu:1"), ("commit", "cpu:1"), ("draft", "cpu:0"), ("pad", "cpu:0"))
    with pytest.raises(PlanError, match=r"verify\.rejection.* nothing to overlap; use --no-overlap"):
        open_pipeline(
            replace(graph, placement=apart), source="mtp-sampled.yaml", num_speculative_tokens=9, overlap=True
        )


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_a_reduced_draft_vocabulary_drafts_its_own_tokens(kernels):
    """Its V' probabilities stand at the target's ids: every draft is one of them, and the laws sum to 1."""
    sizes = replace(SIZES, num_speculative_tokens=3, max_num_seqs=4, max_model_len=192, page_size=64)
    loaded = heads.model("llama", sizes, kernels)
    loaded = replace(loaded, drafter=heads.drafter(kernels, vocab=40, geometry=sizes.geometry()))
    engine = engine_of(loaded, sizes, "mtp-sampled.yaml")
    for i in range(4):
        engine.add(i, Request((5, 9, 20 + i), NEW, ignore_eos=True, sampling=SamplingParams(temperature=3.0, seed=i)))
    known, seen = set(loaded.drafter.vocab.tolist()), set()
    for _ in range(6):
        engine.step()
        bound, _ = engine.prepare_step()
        with torch.inference_mode():
            for run, wave in bound.active_runs():
                run.stage(run.run.call(wave), run.inputs, run.outputs)
                if run.run.stage == "draft.mtp.sampled":
                    token, probs = run.outputs["token"], run.outputs["probs"]
                    torch.testing.assert_close(probs.sum(-1), torch.ones(4))
                    assert (probs.gather(1, token[:, None]) > 0).all()
                    assert (probs > 0).sum() == 4 * 40
                    seen |= set(token.tolist())
    assert seen <= known
    assert len(seen) > 10
