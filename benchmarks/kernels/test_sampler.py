"""Speed of choosing tokens: rows x vocabulary, for each parameter that costs something.

Eight rows are a whole tile of one request's window, or eight requests' rows at K=0; one row is what a single request
pays at K=0. 49152 is SmolLM2's vocabulary, 4096 tiny-v4's. Each benchmark also checks that a row's token is the one
that it gets alone, and one of those that the parameters leave.
"""

from __future__ import annotations

import pytest
import torch

from draftline.stages.sampling.logprobs import logprobs
from draftline.stages.sampling.params import SamplingParams
from draftline.stages.sampling.sampler import Before, Drafted, WaveRows, narrow, pick, shape
from draftline.stages.sampling.wire import tenant

CONTEXT = 1024
FEATURES = {
    "likeliest": SamplingParams(repetition_penalty=1.1),
    "temperature": SamplingParams(temperature=0.8),
    "top_k": SamplingParams(temperature=0.8, top_k=50),
    "top_p": SamplingParams(temperature=0.8, top_p=0.95),
    "top_p-flat": SamplingParams(temperature=8.0, top_p=0.95),
    "min_p": SamplingParams(temperature=0.8, min_p=0.05),
    "penalties": SamplingParams(temperature=0.8, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.2),
    "bias": SamplingParams(temperature=0.8, logit_bias=tuple((i, 1.0) for i in range(300))),
    "bad_words": SamplingParams(temperature=0.8, bad_words=tuple((i, i + 1, i + 2) for i in range(100))),
}


@pytest.fixture(autouse=True)
def _no_grad():
    torch.set_num_threads(1)  # as beside native kernels
    with torch.inference_mode():
        yield


@pytest.fixture(params=[1, 8], ids=["row1", "tile8"])
def rows(request) -> int:
    return request.param


@pytest.fixture(params=[4096, 49152], ids=["v4k", "v49k"])
def vocab(request) -> int:
    return request.param


def made(rows: int, vocab: int) -> tuple[torch.Tensor, WaveRows, Before]:
    g = torch.Generator().manual_seed(1)
    # As peaked as a language model's: a few tokens have most of the mass.
    logits = torch.randn(rows, vocab, generator=g) * 2 - torch.arange(vocab).add(1).log()
    column = torch.arange(rows)
    before = Before(*(torch.randint(vocab, (1, n), generator=g) for n in (CONTEXT, rows)))
    return logits, WaveRows(torch.zeros(rows, dtype=torch.int64), 500 + column, column), before


def info(benchmark, *tensors: torch.Tensor) -> None:
    nbytes = sum(t.numel() * t.element_size() for t in tensors)
    benchmark.extra_info.update(rows=len(tensors[0]), flops=0, bytes=nbytes)


@pytest.mark.parametrize("feature", FEATURES)
def test_pick(benchmark, rows, vocab, feature):
    logits, wave, before = made(rows, vocab)
    who = {0: tenant(1, FEATURES[feature], 100)}
    info(benchmark, logits)
    got = benchmark(pick, logits, who, wave, before)
    for r in range(rows):
        assert int(pick(logits[r : r + 1], who, wave.at([r]), before)) == int(got[r])
    left = narrow(shape(logits.double(), [who[0]] * rows, wave, before), [who[0]] * rows).dense()
    assert (left.gather(1, got[:, None]) > -torch.inf).all()


def test_pick_after_drawn_drafts(benchmark, rows, vocab):
    """All rows but the last judge a draft by its own law."""
    logits, wave, before = made(rows, vocab)
    who = {0: tenant(1, FEATURES["temperature"], 100)}
    probs = logits[None].roll(1, 2).softmax(-1)
    drafts = torch.cat((before.window[:, :1], probs[0].argmax(1)[None]), 1)
    drafted = Drafted(drafts, torch.tensor([rows - 1]), probs)
    info(benchmark, logits, probs[0])
    got = benchmark(pick, logits, who, wave, before, drafted)
    assert int(got[-1]) == int(pick(logits[-1:], who, wave.at([rows - 1]), before))


@pytest.mark.parametrize("top", [0, 20])
def test_logprobs(benchmark, rows, vocab, top):
    logits, _, _ = made(rows, vocab)
    chosen = logits.argmax(1)
    info(benchmark, logits)
    numbers, ids = benchmark(logprobs, logits, chosen, top)
    want = (logits.double() - logits.double().logsumexp(1, keepdim=True)).gather(1, chosen[:, None])
    torch.testing.assert_close(numbers[:, :1].double(), want, rtol=1e-5, atol=1e-6)
    assert (ids[:, 0] == 1).all()
