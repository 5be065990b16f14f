"""DeepSeek V4 against transformers' own implementation: prefill, cached decode, every boundary."""

from __future__ import annotations

import pytest
import torch
import v4
from transformers import DynamicCache

from draftline.stages.caches.core import Geometry
from draftline.stages.models.core import Rows
from draftline.stages.models.deepseek_v4.model import DeepseekV4Target
from draftline.stages.models.deepseek_v4.weights import assemble, tensor_specs

LENGTH = 300
WINDOW, CSA, HCA = 8, 4, 128
PREFILLS = [1, CSA - 1, CSA, WINDOW - 1, WINDOW, WINDOW + 1, HCA - 1, HCA, HCA + 1, 2 * HCA - 1, 2 * HCA, 2 * HCA + 1]


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    theirs = v4.oracle()
    c = v4.config()
    tensors = v4.official_tensors(theirs)
    assert {k: tuple(t.shape) for k, t in tensors.items()} == {k: s.shape for k, s in tensor_specs(c).items()}
    return theirs, c, assemble(c, tensors)


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(2, 256, (LENGTH,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def truth(models, tokens):
    """Logits of every position from one uncached forward of transformers."""
    with torch.no_grad():
        return models[0](tokens[None], use_cache=False).logits[0]


def target(models, in_flight: int = 64) -> DeepseekV4Target:
    _, c, w = models
    g = Geometry(slots=2, max_len=384, page_size=128, num_pages=6, in_flight=in_flight)
    return DeepseekV4Target(c, w, g, torch.float32, torch.device("cpu"))


def rows(tokens: torch.Tensor, start: int, size: int, pages: torch.Tensor, slot: int = 1) -> Rows:
    """``size`` rows of slot 1 from position ``start``, the rest of the call padded."""
    real = tokens[start : start + size]
    n = len(real)
    at, slots, ids = (torch.full((size,), -1) for _ in range(3))
    at[:n] = torch.arange(start, start + n)
    slots[:n] = slot
    ids[:n] = real
    return Rows(ids.clamp(min=0), at, slots, pages)


PAGES = torch.tensor([[-1, -1, -1], [4, 1, 3]])  # scattered on purpose


@pytest.mark.parametrize("prefill", PREFILLS)
def test_prefill_then_row_by_row_equals_transformers(models, tokens, truth, prefill):
    ours, steps = target(models), 12
    with torch.no_grad():
        got = []
        for start in range(0, prefill, 64):
            size = min(64, prefill - start)
            streams = ours.forward(rows(tokens[:prefill], start, 64, PAGES))
            got.append(ours.logits(streams)[:size])
        for p in range(prefill, min(prefill + steps, LENGTH)):
            got.append(ours.logits(ours.forward(rows(tokens, p, 1, PAGES))))
        cache = DynamicCache(config=models[0].config)
        theirs = [models[0](tokens[None, :prefill], cache=cache, use_cache=True).logits[0]]
        for p in range(prefill, min(prefill + steps, LENGTH)):
            theirs.append(models[0](tokens[None, p : p + 1], cache=cache, use_cache=True).logits[0])
    ours_all, theirs_all = torch.cat(got), torch.cat(theirs)
    for other in (theirs_all, truth[: len(ours_all)]):
        assert (ours_all - other).abs().max() <= 1e-4
        assert torch.equal(ours_all.argmax(-1), other.argmax(-1))


@pytest.mark.parametrize("width", [2, 3, 5, 8])
def test_several_rows_a_call_cross_several_boundaries(models, tokens, truth, width):
    """Calls of 8 rows close two ratio-4 windows each; from odd starts too."""
    ours, got, p = target(models), [], 0
    with torch.no_grad():
        while p < LENGTH:
            n = min(width, LENGTH - p)
            got.append(ours.logits(ours.forward(rows(tokens[: p + n], p, 8, PAGES)))[:n])
            p += n
    assert (torch.cat(got) - truth).abs().max() <= 1e-4


def test_rejected_rows_are_overwritten_without_a_trace(models, tokens, truth):
    """Eight wrong rows written ahead, over window and compression boundaries, then the right ones."""
    ours, wrong = target(models), (tokens + 7) % 256
    with torch.no_grad():
        for start in range(0, 128, 64):
            ours.forward(rows(tokens[:120], start, 64, PAGES))
        for p in range(120, LENGTH - 8):
            ids = torch.cat((tokens[: p + 1], wrong[p + 1 : p + 8]))
            logits = ours.logits(ours.forward(rows(ids, p, 8, PAGES)))
            assert (logits[0] - truth[p]).abs().max() <= 1e-4, p


def test_the_oracle_sees_a_fault(models, tokens, truth):
    """The comparison can fail: one forgotten compressed entry is seen."""
    ours = target(models)
    with torch.no_grad():
        for start in range(0, 192, 64):
            ours.forward(rows(tokens[:192], start, 64, PAGES))
        for layer in ours.caches:
            if layer.entries is not None:
                layer.entries[4 * 32 : 4 * 32 + 40] = 0
        logits = ours.logits(ours.forward(rows(tokens, 192, 1, PAGES)))
    assert (logits[0] - truth[192]).abs().max() > 1e-3
