"""Memory: offsets never collide, and a simulated step reads only what it wrote."""

from collections import Counter

import numpy as np
import pytest
from compiler_fakes import MTP, plan_of, with_node
from hypothesis import given
from hypothesis import strategies as st

from draftline.compiler.passes.buffers import ALIGN, Lifetime, pack
from draftline.compiler.plan import Plan, View


@st.composite
def lives(draw):
    count = draw(st.integers(0, 24))
    found = []
    for i in range(count):
        first = draw(st.integers(0, 12))
        device = draw(st.sampled_from([frozenset({"cpu:0"}), frozenset({"cpu:1"}), frozenset({"cpu:0", "cpu:1"})]))
        found.append(Lifetime(f"v{i}", draw(st.integers(0, 700)), first, first + draw(st.integers(0, 6)), device))
    return found


@given(lives(), st.integers(0, 4).map(lambda n: n * ALIGN))
def test_values_live_together_never_overlap(found, base):
    offsets = pack(found, base)
    assert set(offsets) == {life.name for life in found}
    owner: Counter[tuple[int, int]] = Counter()
    for life in found:
        offset = offsets[life.name]
        assert offset >= base
        assert offset % ALIGN == 0
        for step in range(life.first, life.last + 1):
            owner.update((step, byte) for byte in range(offset, offset + life.nbytes))
    assert all(count == 1 for count in owner.values())
    for a in found:
        for b in found:
            side_by_side = a.name < b.name and a.devices != b.devices
            if side_by_side:
                low, high = sorted((a, b), key=lambda v: offsets[v.name])
                assert not (low.nbytes and high.nbytes) or offsets[low.name] + low.nbytes <= offsets[high.name]


def test_memory_is_shared():
    """Ten values, one at a time, need the bytes of two: neighbours meet, others do not."""
    chain = [Lifetime(f"v{i}", 640, i, i + 1, frozenset({"cpu:0"})) for i in range(10)]
    assert max(pack(chain).values()) == 640


def bytes_of(plan: Plan, view: View) -> np.ndarray:
    """The arena's byte numbers that a view shows, found by numpy's own slicing."""
    spec = plan.buffer(view.buffer)
    size = spec.nbytes // max(1, int(np.prod(spec.shape)))
    index = np.arange(spec.offset, spec.offset + spec.nbytes).reshape(*spec.shape, size)
    if view.axis is not None:
        index = index.take(np.arange(view.start, view.start + view.length), axis=view.axis)
    return index.ravel()


def simulate(plan: Plan) -> int:
    """Run the instructions on a tag per byte; a read must find its own value's tag. Return the reads."""
    tags = {spec.name: number for number, spec in enumerate(plan.buffers, start=1)}
    arena = np.zeros(plan.arena_nbytes, dtype=np.int64)
    reads = 0
    for spec in plan.buffers:
        if spec.kind in ("input", "state"):
            arena[spec.offset : spec.offset + spec.nbytes] = tags[spec.name]
    for worker in plan.workers:
        for instruction in worker.instructions:
            if instruction.when is not None:
                assert (arena[bytes_of(plan, View(instruction.when.buffer))] == tags[instruction.when.buffer]).all()
            for run in plan.segment(instruction.segment).runs if instruction.op == "RUN" else ():
                for port, view in run.inputs:
                    if view is not None:
                        assert (arena[bytes_of(plan, view)] == tags[view.buffer]).all(), (run.op, port)
                        reads += 1
                for _, view in run.outputs:
                    arena[bytes_of(plan, view)] = tags[view.buffer]
            for copy in instruction.copies:
                assert (arena[bytes_of(plan, copy.source)] == tags[copy.source.buffer]).all()
    for _, view in plan.outputs:
        assert (arena[bytes_of(plan, view)] == tags[view.buffer]).all()
    return reads


@pytest.mark.parametrize("tile", [8, 16])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 7, 8, 9, 31, 40])
def test_a_step_reads_what_it_wrote(k, tile):
    assert simulate(plan_of(k, tile=tile)) > 10


def test_metadata_is_one_range_of_int64_inputs():
    plan = plan_of(3)
    start, size = plan.metadata
    inside = [b.name for b in plan.buffers if start <= b.offset < start + size]
    assert inside == ["tail", "position", "depth", "recent", "num_recent", "pages"]
    assert [b.name for b in plan.buffers if b.kind == "state"] == ["streams"]


def test_unread_optional_output_has_no_buffer():
    commit = tuple(pair for pair in MTP.node("commit").inputs if pair[0] != "streams")
    plan = plan_of(3, with_node(MTP, "commit", inputs=commit))
    assert "check.streams" not in {b.name for b in plan.buffers}
    assert [port for port, _ in plan.segment("s1.verify").runs[0].outputs] == ["predicted"]
    assert "check.streams" in {b.name for b in plan_of(3).buffers}


def test_bf16_halves_the_model_buffers():
    wide, narrow = plan_of(3).buffer("streams"), plan_of(3, dtype="bf16").buffer("streams")
    assert (wide.dtype, narrow.dtype) == ("float32", "bfloat16")
    assert wide.nbytes == 2 * narrow.nbytes == 8 * 41 * 2 * 16 * 4
