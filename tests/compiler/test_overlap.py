"""Programs of several devices: who tells whom, what overlaps, what may be cancelled; and where caches may be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decoding import PROMPTS
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.compiler.compile import compile_graph
from draftline.compiler.passes.place import follow
from draftline.compiler.plan import Plan
from draftline.graph.core import Graph
from draftline.graph.errors import GraphError, PlanError
from draftline.graph.yaml import load_graph
from draftline.runtime.pipeline import open_pipeline
from draftline.stages import registry

MTP, PREFILL = load_graph("mtp-zmq.yaml"), load_graph("prefill-mtp.yaml")


def plan_of(k: int, overlap: bool = True, graph: Graph = MTP) -> Plan:
    return compile_graph(
        graph,
        lookup=registry.lookup,
        num_speculative_tokens=k,
        tile=8,
        max_num_seqs=2,
        max_model_len=256,
        page_size=64,
        prefill_tile=64,
        overlap=overlap,
        stage_timeout=60.0,
        max_depth=k,
        dtype="fp32",
        model_dims={"H": 4, "D": 192},
    )


def placed(**devices: str) -> Graph:
    return replace(MTP, placement=tuple(devices.items()))


def drafts_in(plan: Plan, segment: str) -> list[int]:
    return [run.iteration for run in plan.segment(segment).runs if run.node == "draft"]


@pytest.mark.parametrize("k", [8, 9, 15, 16, 20, 40])
def test_chunk_0_is_verified_as_soon_as_its_own_drafts_are_there(k):
    plan = plan_of(k)
    drafter, target = (w.instructions for w in plan.workers)
    first = next(n for n, i in enumerate(drafter) if i.op == "SIGNAL")
    before = [d for i in drafter[:first] if i.op == "RUN" for d in drafts_in(plan, i.segment)]
    assert before == list(range(7))  # a chunk of 8 rows: the tail and 7 drafts
    assert [d for i in drafter if i.op == "RUN" for d in drafts_in(plan, i.segment)] == list(range(k))
    ops = [i.op for i in target[: [i.op for i in target].index("RUN") + 1]]
    assert ops == ["WAIT", "READ", "RUN"]
    assert "verify" in next(i.segment for i in target if i.op == "RUN")


@pytest.mark.parametrize("k", [8, 9, 16, 20])
def test_a_draft_asks_only_for_verdicts_on_chunks_that_do_not_need_it(k):
    plan = plan_of(k)
    program = plan.workers[0].instructions
    asked: list[int] = []
    for i in program:
        if i.op == "POLL":
            source = i.copies[0].source
            assert source is not None
            asked.append(int(source.buffer.split(".c")[1].split(".")[0]))
        if i.op == "RUN" and (drafts := drafts_in(plan, i.segment)):
            # Chunk c compares its last row with draft (c + 1)·8 - 1 (counted from 0), so that one it still needs.
            assert asked == [c for c in range(k) if (c + 1) * 8 <= drafts[0]]
            assert (i.when is None) == (not asked)
            assert len(drafts) == 1 or not asked
            asked.clear()


def test_hops_are_edges_and_the_drivers_two():
    for k, overlap in ((3, False), (9, False), (9, True), (20, True)):
        plan = plan_of(k, overlap)
        assert plan.hops == 2 + len(plan.edges)
        assert (plan.entry, plan.exit) == ("cpu:0", "cpu:1")
    assert plan_of(3, False).hops == 3  # there, across, back
    assert plan_of(9, False).hops == 3
    assert plan_of(9, False, replace(MTP, placement=())).hops == 2


@pytest.mark.parametrize(
    ("k", "devices"),
    [
        (7, {"draft": "cpu:0", "check": "cpu:1"}),  # one chunk
        (9, {}),  # one device
        (9, {"draft": "cpu:0", "accept": "cpu:0", "verify": "cpu:1"}),  # the drafter's device is in the chunk loop
    ],
)
def test_without_anything_to_overlap_the_plan_is_the_same(k, devices):
    plain, asked = plan_of(k, False, placed(**devices)), plan_of(k, True, placed(**devices))
    assert asked.workers == plain.workers
    assert asked.segments == plain.segments
    assert asked.edges == plain.edges


def test_a_model_has_one_owner():
    with pytest.raises(PlanError, match=r"places 'target' on cpu:0, but graph 'mtp_zmq' has the caches .* on cpu:1"):
        follow(replace(PREFILL, placement=(("target", "cpu:0"),)), MTP, registry.lookup, "cpu:0")
    moved = follow(PREFILL, MTP, registry.lookup, "cpu:0")
    assert dict(moved.placement) == {"target": "cpu:1", "draft": "cpu:0"}
    # A prefill graph that says the same itself is left alone.
    assert follow(moved, MTP, registry.lookup, "cpu:0") == moved


def test_names_in_a_placement():
    long, short = placed(**{"check.verify": "cpu:1"}), placed(verify="cpu:1")
    assert plan_of(3, False, long).workers == plan_of(3, False, short).workers
    inner_wins = placed(check="cpu:2", verify="cpu:1")
    devices = {s.runs[0].node: s.device for s in plan_of(3, False, inner_wins).segments}
    assert (devices["check.verify"], devices["check.accept"]) == ("cpu:1", "cpu:2")
    with pytest.raises(GraphError, match="placement: there is no node 'verfy'; did you mean"):
        plan_of(3, False, placed(verfy="cpu:1"))


@pytest.fixture(scope="module")
def truth():
    with open_pipeline("ar.yaml", max_num_seqs=2) as pipeline:
        return tokens_of(pipeline)


def tokens_of(pipeline):
    return [o.token_ids for o in pipeline.generate(PROMPTS[:2], max_new_tokens=12, ignore_eos=True)]


device = st.sampled_from(["cpu:0", "cpu:1", "cpu:2"])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.tuples(device, device, device, device, device), st.sampled_from([1, 3, 8, 11]), st.booleans())
def test_any_placement_gives_the_same_tokens(truth, places, k, overlap):
    """In this process, programs in turns: each stops where it must wait."""
    names = ("draft", "pad", "verify", "accept", "commit")
    graph = placed(**dict(zip(names, places, strict=True)))
    with open_pipeline(graph, runtime="inline", num_speculative_tokens=k, overlap=overlap, max_num_seqs=2) as pipeline:
        assert tokens_of(pipeline) == truth
