"""The shipped model: every depth gives plain decoding's tokens, and its MTP layer earns its place."""

from __future__ import annotations

import functools
import json

import pytest

from draftline.runtime.pipeline import Pipeline, open_pipeline
from draftline.runtime.request import Output
from draftline.stages.models.registry import PACKAGED

PROMPTS = [
    "def read_lines(path):\n    ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "The following functions are defined in this module:\n\n.. function:: ",
    "import os\nimport sys\n\nfor name in sorted(os.listdir(path)):\n    if name",
    "x",
    ".. versionchanged:: 3.9\n   The *key* argument may now be",
    "    def test_empty(self):\n        self.assertEqual(",
]
NEW = 40


@functools.cache
def opened(graph: str, k: int, tile: int, dtype: str) -> Pipeline:
    return open_pipeline(graph, num_speculative_tokens=k, tile=tile, dtype=dtype, max_num_seqs=4, max_model_len=256)


def decode(graph: str, k: int, tile: int = 8, dtype: str = "fp32") -> list[Output]:
    return opened(graph, k, tile, dtype).generate(PROMPTS, max_new_tokens=NEW)


@functools.cache
def plain(tile: int, dtype: str) -> list[tuple[tuple[int, ...], str]]:
    return [(o.token_ids, o.finish_reason) for o in decode("ar.yaml", 0, tile, dtype)]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("tile", [8, 16])
@pytest.mark.parametrize("k", [0, 1, 3, 7, 9, 32])
def test_tokens_equal_plain_decoding(k, tile, dtype):
    outputs = decode("mtp.yaml", k, tile, dtype)
    assert [(o.token_ids, o.finish_reason) for o in outputs] == plain(tile, dtype)
    steps, tokens = sum(o.counts.steps for o in outputs), sum(o.counts.tokens for o in outputs)
    assert tokens == sum(len(o.token_ids) for o in outputs)
    assert (steps < tokens) if k else (steps == tokens)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_prompt_lookup_changes_no_token(k):
    assert [(o.token_ids, o.finish_reason) for o in decode("ngram.yaml", k)] == plain(8, "fp32")


def test_the_mtp_layer_drafts_well():
    """Floors well below what the model card reports: a shipped model that does not match its code falls below."""
    for k, floor in ((1, 1.4), (3, 1.8)):
        counts = [o.counts for o in decode("mtp.yaml", k)]
        assert sum(c.tokens for c in counts) / sum(c.steps for c in counts) >= floor


def test_text_is_python_not_noise():
    """Greedy text from the trained model: words of the language, no lone bytes."""
    pipeline = opened("ar.yaml", 0, 8, "fp32")
    text = "".join(pipeline.text.decode(tokens) for tokens, _ in plain(8, "fp32"))
    assert "\ufffd" not in text
    assert sum(word in text for word in ("self", "def ", "return", "the ", "None", "function", "(", "    ")) >= 5


def test_what_is_shipped():
    folder = PACKAGED / "tiny-v4"
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 20e6
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "deepseek_v4"
    assert {0, 4, 128} <= set(config["compress_ratios"])
    assert 0 < config["num_hash_layers"] < config["num_hidden_layers"]
    assert (config["hc_mult"], config["num_nextn_predict_layers"]) == (4, 1)
    card = (folder / "README.md").read_text("utf-8").lower()
    assert all(word in card for word in ("data", "tokens", "loss", "licence", "acceptance"))
