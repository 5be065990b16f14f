"""The Python API builds the same values as the files."""

from __future__ import annotations

import pytest

from draftline.graph.builder import GraphBuilder
from draftline.graph.core import Graph
from draftline.graph.errors import GraphError
from draftline.graph.verify import verify
from draftline.graph.yaml import dumps, load_graph, loads
from draftline.stages.registry import signature


def chunk_body() -> Graph:
    g = GraphBuilder("check")
    window, tokens = g.input("window", ["N", "W"], "int64"), g.input("tokens", ["N", "S"], "int64")
    positions, depth = g.input("positions", ["N", "S"], "int64"), g.input("depth", ["N"], "int64")
    pages, live = g.input("pages", ["N", "G"], "int64"), g.input("live", ["N"], "bool")
    accepted = g.input("accepted", ["N"], "int64")
    history, sampling = (g.input(n, ["N", d], "int64", optional=True) for n, d in (("history", "L"), ("sampling", "Q")))
    verify = g.stage(
        "verify",
        tokens=tokens,
        positions=positions,
        pages=pages,
        live=live,
        history=history,
        sampling=sampling,
        window=window,
    )
    accept = g.stage(
        "accept.greedy", window=window, predicted=verify.predicted, depth=depth, live=live, accepted=accepted
    )
    g.output(predicted=verify.predicted, streams=verify.streams, live=accept.live, accepted=accept.accepted)
    g.output(logprob_ids=verify.logprob_ids, logprobs=verify.logprobs)
    return g.build()


def mtp() -> Graph:
    g = GraphBuilder("mtp", prefill="prefill-mtp.yaml")
    tail, position, depth = (g.input(name, ["N"], "int64") for name in ("tail", "position", "depth"))
    recent, num = g.input("recent", ["N", "M"], "int64"), g.input("num_recent", ["N"], "int64")
    pages, history = g.input("pages", ["N", "G"], "int64"), g.input("history", ["N", "L"], "int64")
    sampling, streams = g.input("sampling", ["N", "Q"], "int64"), g.input("streams", ["N", "M", "H", "D"], "model")
    draft = g.stage(
        "draft.mtp",
        repeat="K",
        carry={"token": "token", "hidden": "hidden"},
        collect={"token": "drafts"},
        token=tail,
        position=position,
        depth=depth,
        recent=recent,
        num_recent=num,
        streams=streams,
        sampling=sampling,
        history=history,
    )
    pad = g.stage("pad", tail=tail, drafts=draft.drafts, position=position, depth=depth)
    check = g.for_each_chunk(
        chunk_body(),
        each=["tokens", "positions"],
        carry={"live": "live", "accepted": "accepted"},
        collect={
            "predicted": "predicted",
            "streams": "streams",
            "logprob_ids": "logprob_ids",
            "logprobs": "logprobs",
        },
        window=pad.window,
        tokens=pad.window,
        positions=pad["positions"],
        depth=depth,
        pages=pages,
        history=history,
        sampling=sampling,
        live=pad.live,
        accepted=pad.accepted,
    )
    commit = g.stage(
        "commit",
        window=pad.window,
        predicted=check.predicted,
        accepted=check.accepted,
        depth=depth,
        streams=check.streams,
        recent_streams=streams,
        num_recent=num,
    )
    g.output(tokens=commit.tokens, count=commit.count, accepted=check.accepted)
    g.output(logprob_ids=check.logprob_ids, logprobs=check.logprobs)
    g.state(streams=commit.streams)
    g.settings(model="tiny-v4", num_speculative_tokens=3, tile=8, max_num_seqs=8, max_model_len=1024, dtype="fp32")
    return g.build()


def test_python_and_yaml_give_equal_graphs():
    assert mtp() == load_graph("mtp.yaml")
    assert hash(mtp()) == hash(load_graph("mtp.yaml"))
    assert mtp().key == load_graph("mtp.yaml").key
    verify(mtp(), signature)


def test_key_is_stable_and_sees_every_change():
    """The literal guards against a hash that differs between processes or versions."""
    g = GraphBuilder("g")
    g.output(y=g.stage("s:C", x=g.input("x", ["N"], "int64")).y)
    assert g.build().key == "d72792bb68734586f0a70491775e565c48233428998ff4536572c9ae70e66ab6"
    other = GraphBuilder("g", doc="documentation is no part of a graph's identity")
    other.output(y=other.stage("s:C", x=other.input("x", ["N"], "int64")).y)
    assert other.build() == g.build()
    assert other.build().key == g.build().key
    other.settings(tile=16)
    assert other.build().key != g.build().key


def test_binding_something_else_names_the_port():
    g = GraphBuilder("g")
    with pytest.raises(GraphError, match=r"node 'pad', port 'tail': is bound to a str"):
        g.stage("pad", tail="tail")
    with pytest.raises(GraphError, match="carry and collect belong to a loop"):
        g.stage("draft.mtp", carry={"token": "token"})
    draft = g.stage("draft.mtp")
    with pytest.raises(GraphError, match=r"node 'pad', port 'drafts': is bound to a Outputs"):
        g.stage("pad", drafts=draft)
    with pytest.raises(GraphError, match=r"output 'y': is bound to a str"):
        g.output(y="draft.drafts")
    with pytest.raises(GraphError, match=r"state 'x': is bound to a Outputs"):
        g.state(x=draft)


def test_wrong_words_are_answered_at_once():
    g = GraphBuilder("g")
    with pytest.raises(GraphError, match="unknown setting 'tyle'; did you mean 'tile'"):
        g.settings(tyle=16)
    with pytest.raises(GraphError, match="setting 'tile': Input should be greater than or equal to 1, not 0"):
        g.settings(tile=0)
    with pytest.raises(
        GraphError,
        match="setting 'num_speculative_tokens': an integer ≥ 0 is wanted, or auto, or auto:N for at most N, not True",
    ):
        g.settings(num_speculative_tokens=True)
    with pytest.raises(GraphError, match="input 'x': unknown dtype 'int65'; did you mean 'int64'"):
        g.input("x", ["N"], "int65")
    with pytest.raises(GraphError, match=r"input 'x': shape 'NK' is one string"):
        g.input("x", "NK", "int64")


def test_every_loop_that_a_file_can_say():
    """A stage per chunk and a repeated graph, as the same text in YAML."""
    inner = GraphBuilder("inner")
    inner.output(y=inner.stage("my:One", x=inner.input("x", ["N", "W"], "int64")).y)
    g = GraphBuilder("outer")
    x = g.input("x", ["N", "W"], "int64")
    cut = g.for_each_chunk("my.cut:Stage", each=["a"], collect={"y": "y"}, options={"size": 2}, a=x)
    g.output(y=g.nested(inner.build(), repeat=2, carry={"x": "y"}, x=cut.y).y)
    g.settings(tile=8, model=None)
    assert g.build() == loads(
        """
        version: 1
        name: outer
        settings: {tile: 8}
        inputs: {x: {shape: [N, W], dtype: int64}}
        nodes:
          my:
            stage: my.cut:Stage
            options: {size: 2}
            for_each: {each: [a], collect: {y: y}}
            inputs: {a: x}
          inner:
            repeat: {times: 2, carry: {x: y}}
            inputs: {x: my.y}
            graph:
              name: inner
              inputs: {x: {shape: [N, W], dtype: int64}}
              nodes: {my: {stage: "my:One", inputs: {x: x}}}
              outputs: {y: my.y}
        outputs: {y: inner.y}
        """
    )
    with pytest.raises(GraphError, match="'inner': carry and collect belong to a loop; give repeat as well"):
        g.nested(inner.build(), carry={"x": "y"}, x=x)


def test_everything_a_file_can_say_survives_the_way_there_and_back():
    """Lists in options, optional inputs, placement, and ports that are called like our own parameters."""
    inner = GraphBuilder("inner")
    x, hint = inner.input("x", ["N"], "int64"), inner.input("hint", ["N", 2], "float32", optional=True)
    inner.output(y=inner.stage("my.stages:One", options={"sizes": [1, [2, 3]]}, stage=x, graph=hint)["y"])
    g = GraphBuilder("outer", prefill="prefill.yaml")
    g.output(y=g.nested(inner.build(), x=g.input("x", ["N"], "int64")).y)
    g.place(inner="cpu:1")
    graph = g.build()
    assert loads(dumps(graph)) == graph
    assert hash(loads(dumps(graph))) == hash(graph)
    [node] = graph.nodes
    assert [p.optional for p in node.graph.inputs] == [False, True]
    assert node.graph.nodes[0].options == (("sizes", (1, (2, 3))),)
    assert node.graph.nodes[0].inputs == (("graph", "hint"), ("stage", "x"))
    assert node.graph.nodes[0].name == "my"
