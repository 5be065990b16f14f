"""What a request gets: penalties and min_tokens that see each accepted token, ends inside an accepted run, the law
through the whole engine, and errors that name what is wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from engines import SIZES, engine_of, scripted_engine
from laws import joint, law, p_value, table, tabled
from scripted import Scripted, Wilful, loaded

from draftline.graph.errors import RequestError
from draftline.graph.yaml import load_graph
from draftline.runtime.engine import Engine
from draftline.runtime.replicas import generate
from draftline.runtime.request import Request
from draftline.runtime.stopping import final_text
from draftline.runtime.text import Text
from draftline.stages.models.places import resolve
from draftline.stages.sampling.params import SamplingParams

V, PROMPT = 6, (0, 3, 1)
TARGET, NEAR = table(V, 1), table(V, 1) + 0.4 * table(V, 2)
EOS = (V - 1,)


class Near(Wilful):
    """Drafts by a table that is nearly the target's."""

    def logits(self, streams):
        token, position = streams[:, 0].long().unbind(-1)
        return NEAR[(position.clamp(min=0)) % len(NEAR), token.clamp(0, V - 1)]


def engine(k: int, graph: str = "mtp.yaml", eos: tuple[int, ...] = (), text: Text | None = None, **sizes) -> Engine:
    wanted = replace(SIZES, num_speculative_tokens=k, **sizes)
    model = loaded(tabled(TARGET), Near(lambda t, p: 0, vocab_size=V), wanted.geometry(), eos)
    made = engine_of(model, wanted, graph)
    made._sampled = replace(made._sampled, text=text)
    return made


def by_hand(params: SamplingParams, new: int, eos: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Greedy decoding, one token at a time, in plain Python over the table."""
    made: list[int] = []
    while len(made) < new:
        made.append(int(law(TARGET, params, PROMPT, made, eos).argmax()))
        if made[-1] in (*eos, *params.stop_token_ids):
            break
    return tuple(made)


@pytest.mark.parametrize("k", [0, 1, 3, 9])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.5),
        SamplingParams(presence_penalty=1.0, frequency_penalty=0.3),
        SamplingParams(frequency_penalty=-0.8),
        SamplingParams(repetition_penalty=1.2, logit_bias=((0, 2.0), (2, -1.0))),
        SamplingParams(min_tokens=7, stop_token_ids=(1, 3)),
        SamplingParams(min_tokens=4),
        SamplingParams(bad_words=((2,), (0, 4), (4, 0, 0))),
        SamplingParams(frequency_penalty=0.9, min_tokens=6, stop_token_ids=(0,), bad_words=((1, 1), (3, 4, 1))),
    ],
)
def test_each_accepted_token_is_seen_in_turn(params, k):
    """Also within a window, and no rejected draft is: the text is that of plain decoding by hand."""
    want = by_hand(params, 30, EOS)
    [output] = generate([engine(k, eos=EOS)], [Request(PROMPT, 30, sampling=params)])
    assert output.token_ids == want
    if k and len(want) > 8:
        assert 0 < output.counts.num_accepted_tokens < output.counts.num_draft_tokens


@pytest.mark.parametrize("graph", ["mtp.yaml", "mtp-sampled.yaml"])
@pytest.mark.parametrize("k", [1, 3, 9])
def test_the_law_through_the_whole_engine(k, graph):
    """1500 requests with seeds of their own, through admission, waves and commit."""
    params = SamplingParams(temperature=1.1, top_p=0.95, repetition_penalty=1.2)
    made = engine(k, graph, max_num_seqs=32, max_model_len=128)
    asked = [Request(PROMPT, 2, sampling=replace(params, seed=i)) for i in range(1500)]
    tokens = torch.tensor([o.token_ids for o in generate([made], asked)])
    assert p_value(tokens, joint(TARGET, params, PROMPT, 2), V) > 1e-6


def counting(k: int, eos: tuple[int, ...] = (), text: Text | None = None) -> Engine:
    """A target that counts, and a drafter that knows it: every draft is accepted."""
    made = scripted_engine(
        Scripted(lambda t, p: t + 1), Wilful(lambda t, p: t + 1), num_speculative_tokens=k, max_num_seqs=2
    )
    made._sampled = replace(made._sampled, text=text)
    made.shape = replace(made.shape, eos_token_ids=eos)
    return made


@pytest.mark.parametrize("k", [0, 3, 9])
@pytest.mark.parametrize("hot", [False, True])
def test_a_stop_token_inside_the_accepted_run_cuts_there(k, hot):
    """Nothing behind it is returned, counted or charged."""
    params = SamplingParams(stop_token_ids=(16, 40), logprobs=1 if hot else None, temperature=1e-3 if hot else 0.0)
    deltas = []
    [output] = generate([counting(k)], [Request((8, 9, 10), 50, sampling=params)], deltas.append)
    assert output.token_ids == (11, 12, 13, 14, 15, 16)
    assert (output.finish_reason, output.stop_reason) == ("stop", 16)
    assert output.counts.tokens == 6
    assert output.counts.num_accepted_tokens <= 6
    assert len(output.logprobs) == (6 if hot else 0)
    assert tuple(t for d in deltas for t in d.token_ids) == output.token_ids
    assert tuple(one for d in deltas for one in d.logprobs) == output.logprobs


@pytest.mark.parametrize("k", [0, 3, 9])
def test_end_of_sequence_has_no_stop_reason(k):
    [output] = generate([counting(k, eos=(14,))], [Request((8, 9, 10), 50)])
    assert output.token_ids == (11, 12, 13, 14)
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    wanted = [
        Request((8, 9, 10), 50, sampling=SamplingParams(stop_token_ids=(13, 14))),
        Request((8, 9, 10), 50, ignore_eos=True, sampling=SamplingParams(stop_token_ids=(17,))),
    ]
    outputs = generate([counting(k, eos=(14,))], wanted)
    assert [(o.token_ids[-1], o.stop_reason) for o in outputs] == [(13, 13), (17, 17)]


@pytest.mark.parametrize("k", [0, 3, 9])
def test_a_stop_string_inside_the_accepted_run_cuts_there(k):
    text = Text(resolve("tiny-v4"))
    decoded = {n: text.decode(range(60, 60 + n)) for n in range(12)}
    stop = decoded[9][len(decoded[6]) + 1 :]  # it ends with the ninth token and begins within another
    asked = [
        Request((57, 58, 59), 30, stop=("\u4e2d", stop)),
        Request((57, 58, 59), 30, stop=(stop,), sampling=SamplingParams(min_tokens=9, logprobs=0)),
        Request((57, 58, 59), 9, stop=(stop,)),
    ]
    outputs = generate([counting(k, text=text)], asked)
    assert outputs[0].token_ids == tuple(range(60, 69))
    assert (outputs[0].finish_reason, outputs[0].stop_reason, outputs[0].counts.tokens) == ("stop", stop, 9)
    assert final_text(text, outputs[0].token_ids, stop) == decoded[9][: -len(stop)]
    assert final_text(text, outputs[0].token_ids, stop, include=True) == decoded[9]
    assert (outputs[1].finish_reason, len(outputs[1].token_ids)) == ("length", 30)  # too early to count
    assert (outputs[2].finish_reason, outputs[2].stop_reason) == ("stop", stop)  # before the limit that it meets


WRONG = {
    "temperature": -0.1,
    "top_k": -2,
    "top_p": 0.0,
    "min_p": 1.5,
    "seed": 2**64,
    "repetition_penalty": 0.0,
    "presence_penalty": 2.5,
    "frequency_penalty": -2.01,
    "min_tokens": 11,
    "logprobs": 21,
    "logit_bias": ((V, 1.0),),
    "bad_words": ((1,), ()),
    "stop_token_ids": (-1,),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_out_of_range_names_its_field(name):
    with pytest.raises(RequestError, match=f"^prompt 1: {name} "):
        generate([engine(1)], [Request(PROMPT, 10, sampling=SamplingParams(**{name: WRONG[name]}))])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty"])
def test_no_number_that_is_none(name, value):
    with pytest.raises(RequestError, match=f"^prompt 1: {name} is "):
        generate([engine(1)], [Request(PROMPT, 10, sampling=SamplingParams(**{name: value}))])


def test_more_that_cannot_be_asked():
    made = engine(1)

    def refused(message: str, **options) -> None:
        with pytest.raises(RequestError, match=message):
            generate([made], [Request(PROMPT, 10, **options)])

    refused("logit_bias of token 1 is nan", sampling=SamplingParams(logit_bias=((1, math.nan),)))
    refused("logit_bias names token 1 twice", sampling=SamplingParams(logit_bias=((1, 1.0), (1, 2.0))))
    refused("top_k is True", sampling=SamplingParams(top_k=True))
    refused("stop is .*strings of at least one character", stop=("",))
    refused("no tokenizer; use stop_token_ids", stop=("x",))
    long = SamplingParams(bad_words=tuple((i % V,) * 10 for i in range(1000)))
    refused(r"sampling parameters take \d+ bytes, at most 8168 .* shorten", sampling=long)
    assert made.num_unfinished == 0


def test_a_graph_without_the_ports_serves_greedy_requests_and_refuses_others():
    """What it lacks is named."""
    bare = load_graph("ar.yaml")
    check = bare.node("check")
    inner = check.graph

    def without(graph, names):
        nodes = tuple(
            replace(
                n,
                inputs=tuple((p, r) for p, r in n.inputs if p not in names),
                graph=None if n.graph is None else without(n.graph, names),
            )
            for n in graph.nodes
        )
        return replace(graph, inputs=tuple(p for p in graph.inputs if p.name not in names), nodes=nodes)

    def served(names, **params):
        sizes = replace(SIZES, num_speculative_tokens=0)
        made = engine_of(loaded(tabled(TARGET), None, sizes.geometry()), sizes, without(bare, names))
        return generate([made], [Request(PROMPT, 4, sampling=SamplingParams(**params))])

    assert inner is not None
    assert served({"sampling", "history"})[0].token_ids == by_hand(SamplingParams(), 4)
    assert served({"sampling", "history"}, stop_token_ids=(by_hand(SamplingParams(), 4)[0],))[0].stop_reason is not None
    with pytest.raises(RequestError, match="temperature cannot be had: graph 'ar' has no input 'sampling'"):
        served({"sampling", "history"}, temperature=0.5, seed=3)
    with pytest.raises(RequestError, match="repetition_penalty cannot be had: graph 'ar' has no input 'history'"):
        served({"history"}, repetition_penalty=1.5)
    assert len(served({"history"}, temperature=0.5)[0].token_ids) == 4
    sizes = replace(SIZES, num_speculative_tokens=0)
    mute = replace(bare, outputs=tuple(o for o in bare.outputs if not o[0].startswith("logprob")))
    made = engine_of(loaded(tabled(TARGET), None, sizes.geometry()), sizes, mute)
    with pytest.raises(RequestError, match="logprobs cannot be had: graph 'ar' has no outputs 'logprobs'"):
        generate([made], [Request(PROMPT, 4, sampling=SamplingParams(logprobs=1))])


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 9e-6])
def test_next_to_nothing_is_a_temperature_of_zero(temperature):
    """No overflow draws among the tokens that are merely good."""
    params = SamplingParams(temperature=temperature, frequency_penalty=0.3, seed=5)
    [output] = generate([engine(3)], [Request(PROMPT, 12, sampling=params)])
    assert output.token_ids == by_hand(replace(params, temperature=0.0), 12)


@pytest.mark.parametrize("temperature", [2e-5, 1e300])
def test_temperatures_at_the_ends(temperature):
    """Next to no noise, and next to nothing else."""
    asked = [
        Request(PROMPT, 12, sampling=SamplingParams(temperature=temperature, seed=i, top_p=0.99)) for i in range(9)
    ]
    got = {o.token_ids for o in generate([engine(3)], asked)}
    assert got == {by_hand(SamplingParams(), 12)} if temperature < 1 else len(got) == 9
