"""The training forward and the inference forward are the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.training import forward, train
from draftline.stages.caches.core import Geometry
from draftline.stages.models.core import Rows
from draftline.stages.models.deepseek_v4.config import parse_config
from draftline.stages.models.deepseek_v4.model import DeepseekV4Drafter, DeepseekV4Target
from draftline.stages.models.deepseek_v4.weights import assemble

LENGTH = 300
PAGES = torch.arange(3)[None]


@pytest.fixture(scope="module")
def setting():
    raw = json.loads((Path(train.__file__).parent / "tiny-v4.json").read_text())
    # More index heads and a small top-k: the indexer really chooses, and no scores tie.
    c = parse_config({**raw, "vocab_size": 128, "index_n_heads": 32, "index_topk": 16})
    # Two index scores closer than rounding may swap between two orders of summation; this seed has none.
    w = assemble(c, train.initial(c, seed=4))
    tokens = torch.randint(0, 128, (LENGTH,), generator=torch.Generator().manual_seed(1))
    geometry = Geometry(slots=1, max_len=384, page_size=128, num_pages=3, in_flight=64)
    return c, w, tokens, geometry


def test_trunk_equals_cached_inference(setting):
    c, w, tokens, geometry = setting
    target = DeepseekV4Target(c, w, geometry, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        trained, _, _ = forward.trunk(c, w, tokens[None], forward.tables(c, LENGTH))
        truth = forward.head(c, w, trained)[0]
        got = []
        for start in range(0, LENGTH, 64):
            at = torch.arange(start, min(start + 64, LENGTH))
            got.append(target.logits(target.forward(Rows(tokens[at], at, torch.zeros_like(at), PAGES))))
    assert (torch.cat(got) - truth).abs().max() <= 1e-4


def test_unrolled_mtp_equals_recurrent_drafting(setting):
    """Depth j of the unrolled loss is the j-th draft of a real step, at every position."""
    c, w, tokens, geometry = setting
    target = DeepseekV4Target(c, w, geometry, torch.float32, torch.device("cpu"))
    depth, zero = 4, torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        t = forward.tables(c, LENGTH)
        streams, _, _ = forward.trunk(c, w, tokens[None], t)
        unrolled = forward.mtp_unrolled(c, w, tokens[None], streams, depth, t)
        drafter = DeepseekV4Drafter(c, w, geometry, torch.float32, torch.device("cpu"))
        for start in (1, 70, 200):
            at = torch.arange(start)
            for s in range(0, start, 64):
                part = at[s : s + 64]
                hidden = drafter.forward(Rows(tokens[part + 1], part, torch.zeros_like(part), PAGES), streams[0, part])
            hidden = hidden[-1:]
            for j in range(2, depth + 1):  # teacher-forced: the token is the text's, the hidden the drafter's
                p = start + j - 2
                hidden = drafter.forward(Rows(tokens[p + 1][None], zero + p, zero, PAGES), hidden)
                got = drafter.logits(hidden)[0]
                assert (got - unrolled[j - 1][0, p]).abs().max() <= 1e-4, (start, j)
    assert target.num_streams == c.hc_mult
