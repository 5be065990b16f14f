"""YAML that is broken, hostile or merely odd gets one line with the right place; overrides are named as such."""

from __future__ import annotations

import time

import pytest

from draftline.graph.errors import GraphFileError
from draftline.graph.yaml import loads

GOOD = """\
version: 1
name: g
settings:
  tile: 8
nodes:
  a:
    stage: one
    options:
      size: 3
outputs:
  out: a.y
"""


def sized(value: str) -> str:
    return GOOD.replace("size: 3", f"size: {value}")


BOMB = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"b{i}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9)
)
"""Ten lines that stand for 10^10 values."""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (sized("&a [*a]"), "f.yaml:9: broken YAML: 'nodes.a.options.size.0' is an alias of what it is in"),
        ("&a {version: 1, nodes: *a}", "f.yaml:1: broken YAML: 'nodes' is an alias of what it is in"),
        (BOMB, "broken YAML: more than 100000 values, aliases counted each time"),
        ("[" * 5000, "f.yaml:1: broken YAML: nested too deeply"),
        (GOOD.replace("  tile", "  on"), "f.yaml:4: key 'settings.on' is read as bool, not as text; put it in quotes"),
        (GOOD.replace("  tile", "  8"), "f.yaml:4: key 'settings.8' is read as int, not as text; put it in quotes"),
        (GOOD.replace("  tile", "  [a]"), "f.yaml:4: key 'settings.' is read as seq, not as text"),
        (GOOD.replace("tile: 8", "tile: 8\0"), "f.yaml:4: broken YAML: unacceptable character #x0000"),
        (sized("!!int x"), "f.yaml:9: broken YAML: invalid literal for int()"),
        (sized("9" * 5000), "f.yaml:9: broken YAML: Exceeds the limit"),
        (GOOD + "---\n" + GOOD, "f.yaml:12: broken YAML: expected a single document in the stream, but found another"),
    ],
    ids=["alias", "alias-top", "bomb", "deep", "bool-key", "int-key", "list-key", "nul", "int", "digits", "documents"],
)
def test_broken_or_hostile_yaml(text, says):
    start = time.monotonic()
    with pytest.raises(GraphFileError) as caught:
        loads(text, "f.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 20


def test_aliases_and_merge_keys_are_fine():
    text = GOOD + "inputs:\n  x: &x {shape: [N], dtype: int64}\n  y: *x\n  z: {<<: *x, shape: [K]}\n"
    assert [(p.name, p.shape) for p in loads(text).inputs] == [("x", ("N",)), ("y", ("N",)), ("z", ("K",))]


def test_a_date_is_text():
    assert dict(loads(sized("2020-99-99")).node("a").options) == {"size": "2020-99-99"}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("settings.tile=abc", "--set 'settings.tile=abc': settings.tile: Input should be a valid integer, not 'abc'"),
        ("settings.tyle=1", "--set 'settings.tyle=1': unknown key 'tyle' at settings; did you mean 'tile'"),
        ("settings={tyle: 1}", "--set 'settings={tyle: 1}': unknown key 'tyle' at settings; did you mean 'tile'"),
        ("settings.tile=&a [*a]", "the value is not YAML: '0' is an alias of what it is in"),
        ("settings={tile: 1, tile: 2}", "the value is not YAML: key 'tile' was given before"),
        ("settings.tile=1\n---\n2", "the value is not YAML: expected a single document"),
        ("nodes.options.stage=pad", "there is no 'nodes.options'"),
        ("placement=3", "--set 'placement=3': placement: a mapping is wanted, not 3"),
    ],
)
def test_a_wrong_override_is_blamed_and_not_a_line_of_the_file(override, says):
    with pytest.raises(GraphFileError) as caught:
        loads(GOOD, "f.yaml", [override])
    assert says in str(caught.value)
    assert "f.yaml" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_file_is_blamed_beside_a_right_override():
    with pytest.raises(GraphFileError, match=r"^f\.yaml:4: settings\.tile: "):
        loads(GOOD.replace("tile: 8", "tile: x"), "f.yaml", ["settings.dtype=bf16", "nodes.a.options.size=4"])


def test_overrides_of_empty_mappings_and_dotted_placement():
    graph = loads(GOOD.replace("  tile: 8\n", ""), overrides=["settings.tile=4", "placement.a.inner=cpu:1"])
    assert (graph.settings, graph.placement) == ((("tile", 4),), (("a.inner", "cpu:1"),))
    assert loads(GOOD, overrides=["settings.tile=4", "settings.tile=16"]).settings == (("tile", 16),)
