"""Each rule of the plan verifier, tripped by breaking one thing in a valid IR."""

from dataclasses import replace

import pytest
from compiler_fakes import MTP, ints, ir_after

from draftline.compiler.core import IR, Value
from draftline.compiler.plan import Chunk, Copy, Edge, Instruction, LiveAbove, View
from draftline.compiler.verifier import RULES, verify
from draftline.graph.errors import GraphError, PlanError
from draftline.stages.core import Layout


def edit_op(ir: IR, name: str, **changes) -> IR:
    return replace(ir, items=tuple(replace(o, **changes) if o.name == name else o for o in ir.ops))


def rewire(ir: IR, name: str, port: str, view: View | None, side: str = "inputs") -> IR:
    op = next(o for o in ir.ops if o.name == name)
    ports = tuple((p, view if p == port else v) for p, v in getattr(op, side))
    return edit_op(ir, name, **{side: ports})


def edit_buffer(ir: IR, name: str, **changes) -> IR:
    return replace(ir, buffers=tuple(replace(b, **changes) if b.name == name else b for b in ir.buffers))


def edit_value(ir: IR, name: str, **changes) -> IR:
    return replace(ir, values=tuple(replace(v, **changes) if v.name == name else v for v in ir.values))


def edit_program(ir: IR, change) -> IR:
    worker = ir.workers[0]
    return replace(ir, workers=(replace(worker, instructions=tuple(change(list(worker.instructions)))),))


def edit_run(ir: IR, which: str, **changes) -> IR:
    return edit_program(ir, lambda code: [replace(i, **changes) if i.segment == which else i for i in code])


def edit_layout(ir: IR, **changes) -> IR:
    return replace(ir, layout=replace(ir.chosen(), **changes))


def offset(ir: IR, name: str) -> int:
    return next(b.offset for b in ir.buffers if b.name == name)


def swapped_states(ir: IR) -> IR:
    """Two states that take each other's value: copied one after the other, the second gets its own."""
    copies = (Copy(View("tail"), "streams"), Copy(View("streams"), "tail"))
    program = edit_program(ir, lambda code: [*code[:-1], replace(code[-1], copies=copies)])
    return replace(program, state=(("streams", View("streams")), ("tail", View("tail"))))


BREAKS = [
    ("NamesUnique", lambda ir: replace(ir, values=(*ir.values, ir.values[-1]))),
    ("ViewsInside", lambda ir: rewire(ir, "check.verify.c1", "tokens", View("pad.window", 1, 9, 8))),
    ("ViewsInside", lambda ir: rewire(ir, "pad", "tail", View("nowhere"))),
    ("ViewsInside", lambda ir: rewire(ir, "draft.1", "token", View("draft.drafts", 1, 0, 2, squeeze=True))),
    (
        "OneProducer",
        lambda ir: rewire(ir, "draft.1", "token", View("draft.drafts", 1, 0, 1, True), "outputs"),
    ),
    ("OneProducer", lambda ir: rewire(ir, "pad", "accepted", View("depth"), "outputs")),
    ("OneProducer", lambda ir: replace(ir, values=(*ir.values, Value("orphan", (8,), "int64")))),
    ("UsedAfterProduced", lambda ir: rewire(ir, "draft.0", "hidden", View("draft.3.hidden"))),
    ("UsedAfterProduced", lambda ir: replace(ir, items=(ir.items[1], ir.items[0], *ir.items[2:]))),
    ("NoAlias", lambda ir: rewire(ir, "check.accept.c1", "accepted", View("check.accept.c1.accepted"))),
    ("ShapesAgree", lambda ir: edit_value(ir, "pad.live", shape=(7,))),
    ("ShapesAgree", lambda ir: edit_value(ir, "pad.live", dtype="int64")),
    ("ShapesAgree", lambda ir: rewire(ir, "commit", "predicted", View("check.predicted", 1, 0, 8))),
    ("StateStable", lambda ir: replace(ir, state=(("streams", View("check.streams")),))),
    ("StateStable", lambda ir: replace(ir, state=(("gone", View("check.streams")),))),
    ("SymbolsBound", lambda ir: edit_value(ir, "pad.window", shape=(8, "W"))),
    ("TileDivides", lambda ir: edit_layout(ir, chosen=Layout(2, 8))),
    ("WavesCover", lambda ir: edit_layout(ir, waves_max=7)),
    ("ChunksCover", lambda ir: edit_layout(ir, chunks=(Chunk(0, 0, 8),))),
    ("ChunksCover", lambda ir: edit_layout(ir, chunks=(Chunk(0, 0, 8), Chunk(1, 9, 2)))),
    ("Placed", lambda ir: edit_op(ir, "pad", device="")),
    ("SegmentsComplete", lambda ir: replace(ir, segments=ir.segments[:-1])),
    ("SegmentsComplete", lambda ir: edit_op(ir, "pad", device="cpu:7")),
    ("SegmentsComplete", lambda ir: edit_op(ir, "pad", per_wave=True)),
    ("BuffersFit", lambda ir: replace(ir, buffers=ir.buffers[1:])),
    ("BuffersFit", lambda ir: edit_buffer(ir, "pad.window", shape=(4, 16))),
    ("BuffersFit", lambda ir: edit_buffer(ir, "pad.window", nbytes=512)),
    ("BuffersAligned", lambda ir: edit_buffer(ir, "pad.live", offset=offset(ir, "pad.live") + 8)),
    ("BuffersInside", lambda ir: replace(ir, arena_nbytes=ir.arena_nbytes - 64)),
    ("BuffersInside", lambda ir: edit_buffer(ir, "pad.live", offset=-64)),
    ("BuffersApart", lambda ir: edit_buffer(ir, "pad.positions", offset=offset(ir, "pad.window"))),
    ("BuffersApart", lambda ir: edit_buffer(ir, "pad.window", offset=offset(ir, "streams"))),
    ("BuffersApart", lambda ir: edit_buffer(ir, "commit.count", offset=offset(ir, "commit.tokens"))),
    ("MetadataHolds", lambda ir: replace(ir, metadata=(ir.metadata[0], ir.metadata[1] - 8))),
    ("MetadataHolds", lambda ir: replace(ir, metadata=(0, ir.metadata[0] + ir.metadata[1]))),
    ("SegmentsExist", lambda ir: edit_run(ir, "s0.draft-pad", segment="s9")),
    ("SegmentsExist", lambda ir: replace(ir, workers=(replace(ir.workers[0], device="cpu:3"),))),
    (
        "SegmentsExist",
        lambda ir: edit_program(ir, lambda code: [i for i in code if i.segment != "s2.accept"]),
    ),
    ("WavesScheduled", lambda ir: edit_run(ir, "s1.verify", wave=0)),
    ("WavesScheduled", lambda ir: edit_program(ir, lambda code: [code[0], code[1], *code[1:]])),
    ("ConditionsCount", lambda ir: edit_run(ir, "s1.verify", when=LiveAbove("nobody", 0))),
    ("ConditionsCount", lambda ir: edit_run(ir, "s1.verify", when=LiveAbove("pad.accepted", 0))),
    ("ConditionsCount", lambda ir: edit_run(ir, "s1.verify", when=LiveAbove("pad.live", -1))),
    ("WavesConditioned", lambda ir: edit_run(ir, "s1.verify", when=LiveAbove("pad.live", 0))),
    ("WavesConditioned", lambda ir: edit_run(ir, "s3.verify", when=None)),
    ("InstructionsOrdered", lambda ir: edit_program(ir, lambda code: code[1:])),
    (
        "InstructionsOrdered",
        lambda ir: edit_program(ir, lambda code: [code[0], Instruction("READ"), *code[1:]]),
    ),
    (
        "InstructionsOrdered",
        lambda ir: edit_program(ir, lambda code: [replace(code[0], buffers=("x",)), *code[1:]]),
    ),
    ("StatesWritten", lambda ir: edit_program(ir, lambda code: [*code[:-1], replace(code[-1], copies=())])),
    ("StatesWritten", swapped_states),
    ("EdgesMatched", lambda ir: replace(ir, edges=(Edge("cpu:0", "cpu:1"),))),
    ("EdgesMatched", lambda ir: edit_program(ir, lambda code: [Instruction("WAIT", edge=0), *code])),
    ("HappensBefore", lambda ir: edit_program(ir, lambda code: [code[0], *code[2:-1], code[1], code[-1]])),
]


@pytest.fixture(scope="module")
def good() -> IR:
    return ir_after("schedule", 9)


@pytest.mark.parametrize(("rule", "damage"), BREAKS)
def test_rule_fires(good, rule, damage):
    (check,) = [one.check for one in RULES if one.name == rule]
    assert list(check(good)) == []
    assert list(check(damage(good)))


def test_every_rule_is_tripped():
    assert {rule for rule, _ in BREAKS} == {rule.name for rule in RULES}


def test_verify_names_rule_and_pass(good):
    with pytest.raises(PlanError, match=r"'mtp' after pass 'layout' breaks rule WavesCover: 7 waves") as caught:
        verify(edit_layout(good, waves_max=7), "layout")
    assert caught.value.rule == "WavesCover"


def test_wrong_connection_is_found_by_the_compiler_itself():
    wrong = replace(MTP, inputs=(*ints("tail:M"), *MTP.inputs[1:]))
    with pytest.raises((PlanError, GraphError), match=r"'draft', port 'token'"):
        ir_after("unroll", 3, wrong)
