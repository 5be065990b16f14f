"""What docs/graphs.md says is so: its rule table, its error line, its YAML. (Its code runs in test_docs.py.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from draftline.graph.errors import GraphFileError
from draftline.graph.verify import RULES
from draftline.graph.yaml import EXAMPLES, load_graph, loads

PAGE = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text("utf-8")


def block(language: str) -> str:
    return re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M).group(1)


def test_rule_table():
    assert re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", PAGE, re.M) == [(rule.name, rule.says) for rule in RULES]


def test_error_line():
    text = (EXAMPLES / "mtp.yaml").read_text("utf-8")
    with pytest.raises(GraphFileError) as caught:
        loads(text.replace("  tile:", "  til:"), "mtp.yaml")
    assert str(caught.value) == block("text").strip()


def test_yaml_is_an_excerpt_of_the_packaged_graph():
    excerpt, whole = loads(block("yaml")), load_graph("ngram.yaml")
    assert (excerpt.name, excerpt.prefill) == (whole.name, whole.prefill)
    assert set(excerpt.settings) <= set(whole.settings)
    assert set(excerpt.inputs) <= set(whole.inputs)
    assert set(excerpt.outputs) <= set(whole.outputs)
    [mine], theirs = excerpt.nodes, whole.node("draft")
    assert (mine.stage, mine.inputs) == (theirs.stage, theirs.inputs)
    assert set(mine.options) <= set(theirs.options)
