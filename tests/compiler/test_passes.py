"""What each pass does to the decode step of ``mtp.yaml``, and what it refuses."""

from dataclasses import replace

import pytest
from compiler_fakes import CHECK, MTP, PREFILL, ints, ir_after, plan_of, settings, with_node

from draftline.compiler.compile import compile_graph
from draftline.compiler.core import Loop, Op
from draftline.compiler.plan import LiveAbove, View
from draftline.graph.core import ForEach, Graph, Repeat
from draftline.graph.errors import GraphError, PlanError
from draftline.stages import registry


def op(ir, name) -> Op:
    return next(item for item in ir.ops if item.name == name)


def test_bind_gives_symbols_and_options():
    ir = ir_after("bind", 3)
    assert dict(ir.dims) == {"N": 8, "K": 3, "M": 41, "L": 1024, "G": 16, "P": 32, "H": 2, "D": 16, "Q": 1024, "Y": 21}
    assert {s.node: s.options for s in ir.stages}["draft"] == (("temperature", 0.0),)
    assert [s.node for s in ir.stages] == ["draft", "pad", "check.verify", "check.accept", "commit"]


def test_pages_round_up():
    assert dict(ir_after("bind", 3, max_model_len=1025).dims)["G"] == 17


def test_unroll_feeds_the_drafter_with_itself():
    ir = ir_after("unroll", 3)
    assert [o.name for o in ir.ops] == ["draft.0", "draft.1", "draft.2", "pad", "commit"]
    assert op(ir, "draft.0").input("token") == View("tail")
    assert op(ir, "draft.0").input("hidden") is None
    assert op(ir, "draft.2").input("token") == View("draft.drafts", 1, 1, 1, squeeze=True)
    assert op(ir, "draft.2").input("hidden") == View("draft.1.hidden")
    assert [o.iteration for o in ir.ops][:3] == [0, 1, 2]
    assert ir.value("draft.drafts").shape == (8, 3)
    assert ir.value("pad.window").shape == (8, "W")
    (loop,) = [item for item in ir.items if isinstance(item, Loop)]
    assert dict(loop.results)["predicted"] == "check.predicted"


def test_no_drafts_at_depth_0():
    ir = ir_after("chunk", 0)
    assert not [o.name for o in ir.ops if o.node == "draft"]
    assert ir.value("draft.drafts").shape == (8, 0)
    assert op(ir, "pad").input("drafts") == View("draft.drafts")


def test_repeat_of_0_times_hands_on_what_was_carried_in():
    nodes = tuple(n for n in MTP.nodes if n.name == "draft")
    graph = Graph("g", MTP.inputs, nodes, (("last", "draft.token"), ("drafts", "draft.drafts")))
    assert dict(ir_after("unroll", 0, graph).outputs)["last"] == View("tail")
    assert dict(ir_after("unroll", 2, graph).outputs)["last"] == View("draft.drafts", 1, 1, 1, squeeze=True)
    with pytest.raises(PlanError, match="never runs"):
        ir_after("unroll", 0, replace(graph, outputs=(("last", "draft.hidden"),)))


def test_chunks_of_the_worked_example():
    """K=9 at T=8: two chunks of 8 columns, active widths 8 and 2."""
    ir = ir_after("chunk", 9)
    assert dict(ir.dims)["W"] == 16
    runs = [o for o in ir.ops if o.node == "check.verify"]
    assert [(o.name, o.chunk, o.start, o.width) for o in runs] == [
        ("check.verify.c0", 0, 0, 8),
        ("check.verify.c1", 1, 8, 2),
    ]
    assert runs[1].input("tokens") == View("pad.window", 1, 8, 8)
    assert dict(runs[1].outputs)["predicted"] == View("check.predicted", 1, 8, 8)
    assert ir.value("check.predicted").shape == (8, 16)
    assert ir.value("check.streams").shape == (8, 16, 2, 16)


def test_carries_of_the_chunk_loop():
    ir = ir_after("chunk", 9)
    assert op(ir, "check.verify.c0").input("live") == View("pad.live")
    assert op(ir, "check.verify.c1").input("live") == View("check.accept.c0.live")
    assert op(ir, "check.accept.c1").input("accepted") == View("check.accept.c0.accepted")
    assert op(ir, "commit").input("accepted") == View("check.accept.c1.accepted")
    assert dict(ir.outputs)["accepted"] == View("check.accept.c1.accepted")
    assert "check.accepted" not in {value.name for value in ir.values}


def test_placement_reaches_into_nested_graphs():
    graph = replace(MTP, placement=(("check", "cpu:1"), ("check.accept", "cpu:2")))
    devices = {o.node: o.device for o in ir_after("place", 3, graph).ops}
    assert devices == {
        "draft": "cpu:0",
        "pad": "cpu:0",
        "check.verify": "cpu:1",
        "check.accept": "cpu:2",
        "commit": "cpu:0",
    }


def test_hops_between_devices_are_in_the_price():
    near, far = plan_of(3), plan_of(3, replace(MTP, placement=(("check.accept", "cpu:1"),)))
    assert far.layout.cost - near.layout.cost == pytest.approx(2 * 25)


def test_one_program_per_device():
    plan = plan_of(3, replace(MTP, placement=(("check", "cpu:1"),)))
    programs = {w.device: [i.segment for i in w.instructions if i.op == "RUN"] for w in plan.workers}
    assert programs == {"cpu:0": ["s0.draft-pad", "s3.commit"], "cpu:1": ["s1.verify"] * 4 + ["s2.accept"]}
    copies = {w.device: [c.target for c in w.instructions[-1].copies] for w in plan.workers}
    assert copies == {"cpu:0": ["streams"], "cpu:1": []}
    written = {w.device: w.instructions[-1].buffers for w in plan.workers}
    assert written == {"cpu:0": ("commit.tokens", "commit.count"), "cpu:1": ("check.accept.c0.accepted",)}


def test_fuse_splits_where_the_condition_changes():
    segments = ir_after("fuse", 9).segments
    assert [(s.name, len(s.ops), s.per_wave) for s in segments] == [
        ("s0.draft-pad", 10, False),
        ("s1.verify", 1, True),
        ("s2.accept", 1, False),
        ("s3.verify", 1, True),
        ("s4.accept-commit", 2, False),
    ]


@pytest.mark.parametrize(("k", "tile", "slots", "b"), [(3, 8, 8, 2), (9, 16, 5, 2), (0, 8, 20, 8), (1, 16, 1, 8)])
def test_waves_run_while_slots_are_left(k, tile, slots, b):
    """Simulated for every number of live slots: waves 0 … ceil(live/B) − 1 run, and no other."""
    plan = plan_of(k, tile=tile, max_num_seqs=slots)
    runs = [i for i in plan.workers[0].instructions if i.segment == "s1.verify"]
    for live in range(slots + 1):
        ran = [i.wave for i in runs if i.when is not None and live > i.when.n]
        assert ran == list(range(-(-live // b)))
    assert {i.when.buffer for i in runs} == {"pad.live"}


def test_later_chunk_waits_for_its_own_live():
    plan = plan_of(9)
    later = [i.when for i in plan.workers[0].instructions if i.segment == "s3.verify"]
    assert later == [LiveAbove("check.accept.c0.live", n) for n in range(8)]


@pytest.mark.parametrize("k", [0, 1, 9])
def test_built_in_stages_compile_to_the_same_plan(k):
    """The signatures of the built-in stages and of the stand-ins here lead to the same operations."""
    real = compile_graph(MTP, lookup=registry.lookup, **settings(k))
    ours = plan_of(k)
    assert [s.name for s in real.segments] == [s.name for s in ours.segments]
    assert [(b.name, b.shape) for b in real.buffers] == [(b.name, b.shape) for b in ours.buffers]


def test_prefill_has_rows_and_no_chunks():
    plan = plan_of(0, PREFILL)
    assert plan.layout.chunks == ()
    assert str(plan.layout.chosen) == "B1xS32"
    assert plan.buffer("tokens").shape == (32,)
    assert [i.op for i in plan.workers[0].instructions] == ["READ", "RUN", "WRITE"]


def test_unknown_symbols_are_named():
    graph = replace(PREFILL, inputs=(*PREFILL.inputs, *ints("extra:Z,N")))
    with pytest.raises(PlanError, match="'Z' of input 'extra'") as caught:
        plan_of(0, graph)
    assert caught.value.rule == "SymbolsBound"
    assert plan_of(0, graph, model_dims={"H": 2, "D": 16, "Z": 5}).buffer("extra").shape == (5, 8)


@pytest.mark.parametrize(
    ("k", "changes", "said"),
    [
        (-1, {}, "K=-1"),
        (41, {}, "largest depth, 40"),
        (3, {"tile": 0}, "tile=0"),
        (3, {"page_size": 0}, "page_size=0"),
        (3, {"dtype": "fp8"}, "dtype 'fp8'"),
        (3, {"model_dims": {"H": 1, "D": 1, "N": 3}}, "'N' would hide"),
        (3, {"model_dims": {"H": 1, "D": 1, "S": 3}}, "'S' would hide"),
    ],
)
def test_nonsense_deployment_is_refused(k, changes, said):
    with pytest.raises(PlanError, match=said):
        plan_of(k, **changes)


@pytest.mark.parametrize(
    ("placement", "said"),
    [((("chek", "cpu:0"),), "did you mean 'check'"), ((("check", "gpu:0"),), "'gpu:0' is not a device")],
)
def test_bad_placement_is_refused(placement, said):
    with pytest.raises((PlanError, GraphError), match=said):
        plan_of(3, replace(MTP, placement=placement))


def test_missing_and_unknown_options_are_refused():
    with pytest.raises((PlanError, GraphError), match="size"):
        plan_of(0, with_node(PREFILL, "fill", options=()))
    with pytest.raises((PlanError, GraphError), match="did you mean 'size'"):
        plan_of(0, with_node(PREFILL, "fill", options=(("size", 1), ("sise", 2))))
    with pytest.raises((PlanError, GraphError), match="dict"):
        plan_of(0, with_node(PREFILL, "fill", options=(("size", {}),)))


def test_what_is_cut_must_be_a_window():
    loop = MTP.node("check").loop
    assert isinstance(loop, ForEach)
    with pytest.raises((PlanError, GraphError), match=r"live|cut"):
        plan_of(3, with_node(MTP, "check", loop=replace(loop, each=("tokens", "live"))))


def test_nested_chunk_loops_are_refused():
    looped = with_node(CHECK, "verify", loop=ForEach(("tokens",)))
    with pytest.raises((PlanError, GraphError), match="verify"):
        plan_of(3, with_node(MTP, "check", graph=looped))


def test_repeat_inside_a_chunk_loop():
    """Two accepts in a row in each chunk: names and carries stay apart."""
    accept = CHECK.node("accept")
    assert accept is not None
    twice = replace(accept, loop=Repeat(2, (("live", "live"), ("accepted", "accepted"))))
    graph = with_node(MTP, "check", graph=replace(CHECK, nodes=(CHECK.nodes[0], twice)))
    ir = ir_after("schedule", 9, graph)
    names = [o.name for o in ir.ops if o.node == "check.accept"]
    assert names == ["check.accept.c0.0", "check.accept.c0.1", "check.accept.c1.0", "check.accept.c1.1"]
    assert op(ir, "check.verify.c1").input("live") == View("check.accept.c0.1.live")
    assert op(ir, "check.accept.c0.1").input("live") == View("check.accept.c0.0.live")
