"""The plan in words and pictures, and the capture backends."""

import json
from dataclasses import replace

import pytest
from compiler_fakes import PREFILL, ir_after, plan_of

from draftline.compiler.capture import backend
from draftline.compiler.compile import PASSES
from draftline.compiler.explain import dump_text, dumper, explain
from draftline.compiler.pictures import emit
from draftline.compiler.plan import Plan
from draftline.graph.errors import PlanError, UsageError


def stable(plan: Plan) -> Plan:
    """The plan without what changes with the installation."""
    return replace(plan, versions=(("draftline", "any"),), key="0" * 64)


@pytest.mark.parametrize("k", [0, 3, 9])
def test_explain_is_golden(golden, k):
    golden(f"compiler/explain-k{k}.txt", explain(stable(plan_of(k))))


def test_explain_prefill_is_golden(golden):
    golden("compiler/explain-prefill.txt", explain(stable(plan_of(0, PREFILL))))


@pytest.mark.parametrize("form", ["mermaid", "dot"])
def test_pictures_are_golden(golden, form):
    golden(f"compiler/plan-k9.{form}", emit(plan_of(9), form))


def test_dump_is_golden(golden):
    golden("compiler/ir-chunk-k9.txt", dump_text("chunk", ir_after("chunk", 9)))


def test_explain_says_what_was_asked_for():
    text = explain(plan_of(9, tile=16))
    for said in (
        "B2xS8",
        "T=16",
        "active width 8",
        "active width 2",
        "B1xS16  rule RowsCapped",
        "assumed",
        "pad.window",
    ):
        assert said in text
    for spec in plan_of(9, tile=16).buffers:
        assert f" {spec.nbytes}\n" in text


def test_emit_json_is_the_plan():
    plan = plan_of(3)
    assert Plan.from_json(emit(plan, "json")) == plan
    assert json.loads(emit(plan, "json"))["layout"]["chosen"] == {"requests": 2, "rows": 4}


def test_emit_unknown():
    with pytest.raises(UsageError, match="did you mean 'mermaid'"):
        emit(plan_of(3), "mermade")


def test_pictures_show_every_run_and_the_chain():
    dot = emit(plan_of(9), "dot")
    for run in (run for segment in plan_of(9).segments for run in segment.runs):
        assert f"{run.op}\\n{run.stage}" in dot
    assert dot.count("subgraph") == len(plan_of(9).segments)


@pytest.mark.parametrize("only", ["", *PASSES])
def test_dump_of_one_pass_or_all(only):
    written = []
    plan = plan_of(3)
    dump = dumper(written.append, only)
    for name in PASSES:
        dump(name, ir_after(name, 3))
    assert len(written) == (1 if only else len(PASSES))
    assert f"after {only or 'bind'} ==" in written[0]
    if only == "schedule":
        assert all(buffer.name in written[0] for buffer in plan.buffers)


def test_dump_of_an_unknown_pass():
    with pytest.raises(UsageError, match="did you mean 'unroll'"):
        dumper(print, "unrol")


def test_eager_replays_and_counts():
    capture, ran = backend("eager"), []
    replay = capture.capture(ran.append, lambda: ran.append(-1))
    replay(2)
    replay(0)
    assert (ran, capture.captures) == ([2, 0], 1)
    assert backend("eager").captures == 0


@pytest.mark.parametrize("name", ["npugraph", "cudagraph"])
def test_backends_that_are_not_here_raise(name):
    with pytest.raises(PlanError, match=rf"'{name}' is not available.*'eager'"):
        backend(name)


def test_unknown_backend():
    with pytest.raises(PlanError, match="did you mean 'eager'"):
        backend("eagre")
