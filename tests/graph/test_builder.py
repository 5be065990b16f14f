"""The Python API builds the same values as the files."""

from __future__ import annotations

import pytest

from draftline.graph.builder import GraphBuilder
from draftline.graph.core import Graph
from draftline.graph.errors import GraphError
from draftline.graph.verify import verify
from draftline.graph.yaml import load_graph
from draftline.stages.registry import signature


def chunk_body() -> Graph:
    g = GraphBuilder("check")
    window, tokens = g.input("window", ["N", "W"], "int64"), g.input("tokens", ["N", "S"], "int64")
    positions, depth = g.input("positions", ["N", "S"], "int64"), g.input("depth", ["N"], "int64")
    pages, live = g.input("pages", ["N", "G"], "int64"), g.input("live", ["N"], "bool")
    accepted = g.input("accepted", ["N"], "int64")
    verify = g.stage("verify", tokens=tokens, positions=positions, pages=pages, live=live)
    accept = g.stage(
        "accept.greedy", window=window, predicted=verify.predicted, depth=depth, live=live, accepted=accepted
    )
    g.output(predicted=verify.predicted, streams=verify.streams, live=accept.live, accepted=accept.accepted)
    return g.build()


def mtp() -> Graph:
    g = GraphBuilder("mtp", prefill="prefill-mtp.yaml")
    tail, position, depth = (g.input(name, ["N"], "int64") for name in ("tail", "position", "depth"))
    recent, num = g.input("recent", ["N", "M"], "int64"), g.input("num_recent", ["N"], "int64")
    pages, streams = g.input("pages", ["N", "G"], "int64"), g.input("streams", ["N", "M", "H", "D"], "model")
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
    )
    pad = g.stage("pad", tail=tail, drafts=draft.drafts, position=position, depth=depth)
    check = g.for_each_chunk(
        chunk_body(),
        each=["tokens", "positions"],
        carry={"live": "live", "accepted": "accepted"},
        collect={"predicted": "predicted", "streams": "streams"},
        window=pad.window,
        tokens=pad.window,
        positions=pad["positions"],
        depth=depth,
        pages=pages,
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
    )
    g.output(tokens=commit.tokens, count=commit.count, accepted=check.accepted)
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
