"""The plan as data: JSON, coverage, one arena for several plans."""

import json
from dataclasses import replace

import pytest
from compiler_fakes import MTP, PREFILL, plan_of, settings, streams, with_node

from draftline.compiler.compile import compile_graph
from draftline.compiler.plan import Plan, arena_for
from draftline.graph.errors import PlanError, UncoveredShapeError
from draftline.graph.yaml import load_graph, packaged
from draftline.stages import registry


@pytest.mark.parametrize("tile", [8, 16])
@pytest.mark.parametrize("k", [0, 1, 3, 9, 40])
def test_json_round_trip(k, tile):
    plan = plan_of(k, tile=tile)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.to_json() == plan.to_json()
    assert Plan.from_json(plan.to_json(indent=2)) == plan


def test_options_keep_their_types():
    plan = plan_of(1)
    run = replace(
        plan.segments[0].runs[0],
        options=(("a", 1), ("b", 1.0), ("c", True), ("d", None), ("e", ("x", (2, 2.5)))),
    )
    plan = replace(plan, segments=(replace(plan.segments[0], runs=(run,)),))
    again = Plan.from_json(plan.to_json()).segments[0].runs[0].options
    assert repr(again) == repr(run.options)


@pytest.mark.parametrize("damage", [lambda t: "", lambda t: "{}", lambda t: t[: len(t) // 2], lambda t: "[1]"])
def test_broken_json_is_a_plan_error(damage):
    with pytest.raises(PlanError, match="not a plan"):
        Plan.from_json(damage(plan_of(1).to_json()))


def test_other_format_is_refused():
    content = json.loads(plan_of(1).to_json())
    with pytest.raises(PlanError, match="format 99"):
        Plan.from_json(json.dumps({**content, "format": 99}))


@pytest.mark.parametrize(("requests", "depth"), [(9, 0), (1, 4), (-1, 0), (0, -1)])
def test_uncovered_shape_names_shape_and_plan(requests, depth):
    with pytest.raises(UncoveredShapeError, match=rf"'mtp' \(B2xS4, K=3\).*{requests} requests x {depth} drafts"):
        plan_of(3).covers(requests, depth)


@pytest.mark.parametrize(("requests", "depth"), [(0, 0), (8, 3), (1, 0)])
def test_covered_shape(requests, depth):
    plan_of(3).covers(requests, depth)


def test_every_depth_and_the_prefill_share_an_arena():
    plans = [plan_of(k) for k in (0, 1, 3, 9, 40)] + [plan_of(0, PREFILL)]
    assert arena_for(plans) == max(plan.arena_nbytes for plan in plans)
    assert arena_for([]) == 0


@pytest.mark.parametrize("name", packaged())
@pytest.mark.parametrize("k", [0, 3, 9])
def test_packaged_graphs_compile(name, k):
    numbers = {**settings(k), "model_dims": {"H": 2, "D": 16, "V": 50}}
    plan = compile_graph(load_graph(name), lookup=registry.lookup, **numbers)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.workers[0].instructions[0].buffers


def test_mtp_and_its_prefill_share_an_arena():
    step = load_graph("mtp.yaml")
    plans = [compile_graph(step, lookup=registry.lookup, **settings(k)) for k in (0, 1, 9)]
    plans.append(compile_graph(load_graph(step.prefill), lookup=registry.lookup, **settings(9)))
    assert arena_for(plans) >= plans[-1].arena_nbytes


def test_other_states_cannot_share_an_arena():
    with pytest.raises(PlanError, match="states streams differ"):
        arena_for([plan_of(1), plan_of(1, max_num_seqs=4)])
    stateless = replace(with_node(PREFILL, "fill"), state=(), outputs=(("s", "fill.streams"),))
    assert stateless.inputs[-1] == streams("M")
    with pytest.raises(PlanError, match="cannot share"):
        arena_for([plan_of(1), plan_of(0, stateless)])


def test_look_ups():
    plan = plan_of(3)
    assert plan.buffer("pad.window").shape == (8, 4)
    assert plan.dim("M") == 41
    assert plan.segment("s1.verify").per_wave
    for look_up, name in ((plan.buffer, "x"), (plan.dim, "X"), (plan.segment, "s9")):
        with pytest.raises(PlanError, match=f"'{name}'"):
            look_up(name)


def test_call_carries_the_wave():
    run = plan_of(9).segment("s3.verify").runs[0]
    call = run.call(wave=5)
    assert (call.chunk, call.start, call.width, call.wave, call.iteration) == (1, 8, 2, 5, 0)


def test_same_graph_same_key_other_k_other_key():
    assert plan_of(3).key == plan_of(3).key
    assert len({plan_of(k).key for k in range(5)}) == 5
    assert plan_of(3, replace(MTP, settings=(("tile", 99),))).key == plan_of(3).key
