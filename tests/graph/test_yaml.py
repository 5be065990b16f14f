"""Graph files: errors with file, line and key; overrides; round trips; the exported schema."""

from __future__ import annotations

import re
import string
from dataclasses import replace

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.graph.core import DTYPES, ForEach, Graph, Node, Port, Repeat
from draftline.graph.errors import GraphError, GraphFileError
from draftline.graph.yaml import EXAMPLES, dumps, json_schema, load_graph, loads, packaged, resolve_prefill

GOOD = """\
version: 1
name: g
settings:
  tile: 8
inputs:
  x: {shape: [N], dtype: int64}
nodes:
  a:
    stage: one
    options:
      size: 3
    inputs:
      a: x
  b:
    graph:
      name: inner
      inputs:
        x: {shape: [N], dtype: int64}
      nodes:
        deep:
          stage: one
          inputs: {a: x}
      outputs: {y: deep.y}
    inputs: {x: a.y}
outputs:
  out: b.y
"""


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


CASES = [
    (
        changed("name: g\n", "name: g\nnodez: {}\n"),
        "f.yaml:3: unknown key 'nodez' at the top level; did you mean 'nodes'",
    ),
    (changed("    stage: one\n", "    stag: one\n"), "f.yaml:9: unknown key 'stag' at nodes.a; did you mean 'stage'"),
    (
        changed("          stage: one", "          stge: one"),
        "f.yaml:21: unknown key 'stge' at nodes.b.graph.nodes.deep",
    ),
    (changed("  tile: 8", "  tyle: 8"), "f.yaml:4: unknown key 'tyle' at settings; did you mean 'tile'"),
    (
        changed("x: {shape: [N], dtype", "x: {shap: [N], dtype"),
        "f.yaml:6: unknown key 'shap' at inputs.x; did you mean",
    ),
    (changed("  tile: 8", "  tile: 8.5"), "f.yaml:4: settings.tile: Input should be a valid integer"),
    (changed("  tile: 8", "  tile: true"), "f.yaml:4: settings.tile: Input should be a valid integer"),
    (changed("  tile: 8", "  tile: '8'"), "f.yaml:4: settings.tile: Input should be a valid integer"),
    (
        changed("  tile: 8", "  num_speculative_tokens: -1"),
        "f.yaml:4: settings.num_speculative_tokens: an integer ≥ 0 is wanted, or auto",
    ),
    (
        changed("  tile: 8", "  num_speculative_tokens: false"),
        "f.yaml:4: settings.num_speculative_tokens: an integer ≥ 0 is wanted, or auto",
    ),
    (changed("  tile: 8", "  dtype: fp16"), "f.yaml:4: settings.dtype: Input should be 'fp32' or 'bf16'"),
    (changed("dtype: int64}", "dtype: int65}"), "f.yaml:6: inputs.x.dtype: Input should be 'int64'"),
    (changed("version: 1", "version: 2"), "f.yaml:1: version: Input should be 1"),
    (changed("version: 1\n", ""), "f.yaml:1: version: Field required"),
    (changed("    stage: one\n", ""), "f.yaml:8: node 'a' has neither stage nor graph"),
    (
        changed("    stage: one\n", "    stage: one\n    repeat: {times: K}\n    for_each: {each: [a]}\n"),
        "has both repeat and",
    ),
    (changed("  tile: 8", "  tile: 8\n  tile: 9"), "f.yaml:5: key 'settings.tile' was given before, on line 4"),
    (changed("  tile: 8", "  tile: [8"), "f.yaml:5: broken YAML"),
    (
        changed("  tile: 8", "  tile: !!python/object/apply:os.system ['x']"),
        "f.yaml:4: broken YAML: could not determine",
    ),
    (changed("  tile: 8", "  model: *other"), "f.yaml:4: broken YAML"),
    ("", "f.yaml:1: holds nothing; a mapping with version, name, nodes is wanted"),
    ("- 1\n- 2\n", "f.yaml:1: holds a list"),
    ("just text", "f.yaml:1: holds a str"),
    (
        changed("    inputs:\n      a: x", "    inputs: [a]"),
        "f.yaml:12: nodes.a.inputs: a mapping is wanted",
    ),
    (changed("      a: x", "      a: 3"), "f.yaml:13: nodes.a.inputs.a: Input should be a valid string"),
    (
        changed("  a:\n    stage", "  a-b:\n    stage"),
        "f.yaml:8: nodes.a-b: a name of letters, digits and _ is wanted, not 'a-b'",
    ),
    (changed("[N]", "[-1]"), "f.yaml:6: inputs.x.shape.0: a size ≥ 0 or a symbol such as N is wanted, not -1"),
    (changed("[N]", "[N, 1.5]"), "f.yaml:6: inputs.x.shape.1: a size ≥ 0 or a symbol such as N is wanted, not 1.5"),
    (changed("[N]", "[NO]"), "f.yaml:6: inputs.x.shape.0: YAML reads this symbol as a boolean"),
    (changed("int64}", "int64, optional: 1}"), "f.yaml:6: inputs.x.optional: Input should be a valid boolean, not 1"),
    (changed("size: 3", "size: {a: 1}"), "f.yaml:11: nodes.a.options.size: a boolean, finite number, string, null or"),
    (changed("size: 3", "size: [1, {a: 1}]"), "f.yaml:11: nodes.a.options.size: a boolean, finite number, string"),
    (changed("size: 3", "size: .nan"), "f.yaml:11: nodes.a.options.size: a boolean, finite number, string"),
    (changed("settings:\n  tile: 8", "settings:"), "f.yaml:3: settings: a mapping is wanted, not nothing"),
    (changed(", dtype: int64", ""), "f.yaml:6: inputs.x.dtype: Field required"),
]


@pytest.mark.parametrize(("text", "says"), CASES, ids=range(len(CASES)))
def test_errors_name_file_line_and_key(text, says):
    with pytest.raises(GraphFileError) as caught:
        loads(text, "f.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_graph(tmp_path):
    with pytest.raises(
        GraphFileError, match=r"mtb\.yaml: no such file, and no packaged graph .* did you mean 'mtp\.yaml'"
    ):
        load_graph("mtb.yaml")
    with pytest.raises(GraphFileError, match=r"mpt: no such file.* did you mean 'mtp\.yaml'"):
        load_graph("mpt")
    with pytest.raises(GraphFileError, match="cannot be read: Is a directory"):
        load_graph(tmp_path)
    with pytest.raises(GraphFileError, match="cannot be read: File name too long"):
        load_graph("m" * 5000)
    with pytest.raises(GraphFileError, match="no graph is named"):
        load_graph("")
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(GraphFileError, match=r"latin\.yaml: cannot be read as UTF-8"):
        load_graph(tmp_path / "latin.yaml")


def test_names_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_graph("mtp") == load_graph("mtp.yaml")
    (tmp_path / "mtp.yaml").write_text(GOOD)
    assert load_graph("mtp.yaml").name == "g"  # a file of that name comes first
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "fill.yaml").write_text(GOOD.replace("name: g", "name: fill", 1))
    (tmp_path / "sub" / "g.yaml").write_text(GOOD.replace("name: g\n", "name: g\nprefill: fill.yaml\n", 1))
    graph = load_graph("sub/g.yaml")
    assert resolve_prefill(graph, "sub/g.yaml").name == "fill"
    assert resolve_prefill(load_graph("mtp"), "mtp.yaml").name == "prefill_mtp"
    assert resolve_prefill(load_graph("prefill"), "prefill.yaml") is None
    (tmp_path / "sub" / "fill.yaml").unlink()
    with pytest.raises(GraphFileError, match=r"^fill\.yaml: no such file.* \(prefill of graph 'g'\)$"):
        resolve_prefill(graph, "sub/g.yaml")


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("settings.tile=16", "tile", 16),
        ("settings.num_speculative_tokens=0", "num_speculative_tokens", 0),
        ("settings.num_speculative_tokens=auto:5", "num_speculative_tokens", "auto:5"),
        ("settings.model=other", "model", "other"),
    ],
)
def test_overrides_of_settings(override, path, value):
    assert dict(loads(GOOD, "f", [override]).settings)[path] == value


def test_overrides_elsewhere():
    graph = loads(GOOD, "f", ["nodes.a.options.size=[1, 2]", "nodes.a.options.more=0.5", "placement.a=cpu:1", "name=h"])
    assert dict(graph.node("a").options) == {"size": (1, 2), "more": 0.5}
    assert (graph.placement, graph.name) == ((("a", "cpu:1"),), "h")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("settings.tyle=16", "unknown key 'tyle' at settings; did you mean 'tile'"),
        ("nodes.c.stage=x", "there is no 'nodes.c'"),
        ("nodes.a.stage.x=1", "there is no 'nodes.a.stage'"),
        ("nodes.a.stagee=x", "there is no 'nodes.a.stagee'; did you mean 'stage'"),
        ("settings.tile", "KEY.KEY=VALUE is wanted"),
        ("=3", "KEY.KEY=VALUE is wanted"),
        ("settings..tile=3", "KEY.KEY=VALUE is wanted"),
        ("settings.tile=[", "the value is not YAML"),
        ("settings.num_speculative_tokens=true", "settings.num_speculative_tokens: an integer ≥ 0 is wanted"),
    ],
)
def test_bad_overrides(override, says):
    with pytest.raises(GraphFileError, match=re.escape(says)):
        loads(GOOD, "f", [override])


def test_key_does_not_depend_on_the_order_of_options_and_inputs():
    a = loads(changed("      size: 3", "      size: 3\n      other: 1"))
    b = loads(changed("      size: 3", "      other: 1\n      size: 3"))
    assert a == b
    assert a.key == b.key
    assert a.key != loads(changed("size: 3", "size: 4")).key


@pytest.mark.parametrize("name", packaged())
def test_schema_accepts_the_packaged_graphs(name):
    document = yaml.safe_load((EXAMPLES / name).read_text("utf-8"))
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "nodez": {}}, schema)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("stge: one", "stage: one"),
        ("dtype: int65", "dtype: int64"),
        ("[-1]", "[0]"),
        ("['a-b']", "[NO_1]"),
        ("size: {a: 1}", "size: [1, null, [a]]"),
        ("size: [{a: 1}]", "size: 1.5"),
        ("tile: true", "tile: 1"),
        ("optional: 1", "optional: true"),
    ],
)
def test_schema_and_loader_refuse_the_same(old, new):
    """An editor that follows the exported schema marks what the loader would refuse, and nothing else."""
    places = {
        "st": ("stage: one", "{}"),
        "dt": ("dtype: int64", "{}"),
        "[": ("[N]", "{}"),
        "si": ("size: 3", "{}"),
        "ti": ("tile: 8", "{}"),
        "op": ("dtype: int64", "dtype: int64, {}"),
    }
    place, form = next(v for start, v in places.items() if old.startswith(start))
    good, bad = changed(place, form.format(new)), changed(place, form.format(old))
    jsonschema.validate(yaml.safe_load(good), json_schema())
    loads(good)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(bad), json_schema())
    with pytest.raises(GraphFileError):
        loads(bad)


def test_a_nested_graph_has_no_settings_of_its_own():
    """The form cannot say it, so writing it says so instead of giving a file that does not load."""
    graph = loads(GOOD)
    inner = replace(graph.node("b"), graph=replace(graph.node("b").graph, settings=(("tile", 16),)))
    with pytest.raises(GraphError, match="node 'b': its graph has settings of its own; only the outermost graph has"):
        dumps(replace(graph, nodes=(graph.node("a"), inner)))


names = st.text(string.ascii_letters + "_", min_size=1, max_size=6)
dims = st.one_of(st.integers(0, 9), names)
refs = st.one_of(names, st.tuples(names, names).map(".".join))
pairs = st.dictionaries(names, names, max_size=3).map(lambda d: tuple(sorted(d.items())))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["yes", "1", "null", "1.5", "", "~", "a: b", "0x10", "2020-01-01", " x ", "é", "- a"]),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
loops = st.one_of(
    st.none(),
    st.builds(Repeat, dims, pairs, pairs),
    st.builds(ForEach, st.lists(names, max_size=3).map(tuple), pairs, pairs),
)
ports = st.dictionaries(
    names, st.tuples(st.lists(dims, max_size=4).map(tuple), st.sampled_from(DTYPES), st.booleans()), max_size=3
).map(lambda d: tuple(Port(n, *port) for n, port in d.items()))
bound = st.dictionaries(names, refs, max_size=3)


def nodes(inner: st.SearchStrategy[Graph] | None) -> st.SearchStrategy[tuple[Node, ...]]:
    body = st.tuples(st.sampled_from(["pad", "my.module:Stage"]), st.none())
    if inner is not None:
        body = st.one_of(body, st.tuples(st.just(""), inner))
    one = st.builds(
        lambda body, inputs, options, loop: Node(
            "", tuple(sorted(inputs.items())), body[0], body[1], tuple(sorted(options.items())), loop
        ),
        body,
        bound,
        st.dictionaries(names, values, max_size=3),
        loops,
    )
    named = st.dictionaries(names, one, max_size=3)
    return named.map(lambda d: tuple(Node(n, b.inputs, b.stage, b.graph, b.options, b.loop) for n, b in d.items()))


outputs = bound.map(lambda d: tuple(d.items()))
nested = st.builds(Graph, names, ports, nodes(None), outputs)
graphs = st.builds(
    Graph,
    names,
    ports,
    nodes(nested),
    outputs,
    bound.map(lambda d: tuple(sorted(d.items()))),
    st.sampled_from([(), (("tile", 16),), (("dtype", "bf16"), ("num_speculative_tokens", 0))]),
    st.dictionaries(names, st.sampled_from(["cpu:0", "npu:1"]), max_size=2).map(lambda d: tuple(sorted(d.items()))),
    st.sampled_from(["", "prefill.yaml"]),
)


@settings(max_examples=150, deadline=None)
@given(graphs)
def test_python_to_yaml_to_python(graph):
    again = loads(dumps(graph))
    assert again == graph
    assert (hash(again), again.key) == (hash(graph), graph.key)
