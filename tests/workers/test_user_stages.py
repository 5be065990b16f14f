"""Stages that only the driver's process knows: defined in a function, in a script, replaced; and what cannot travel."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import pytest
import torch
from decoding import decode

from draftline.graph.core import Graph, Node, Port, Signature
from draftline.graph.errors import GraphError, UsageError
from draftline.graph.yaml import load_graph
from draftline.runtime.pipeline import open_pipeline


def with_drafter(stage: str, placement: tuple[tuple[str, str], ...] = ()) -> Graph:
    """ar.yaml with a drafter that sees the tail alone."""
    ar = load_graph("ar.yaml")
    draft = Node("draft", (("depth", "depth"), ("tail", "tail")), stage=stage)
    pad = replace(ar.node("pad"), inputs=(("drafts", "draft.drafts"), *ar.node("pad").inputs))
    return replace(ar, nodes=(draft, pad, *ar.nodes[1:]), placement=placement)


PLACED = (("draft", "cpu:0"), ("pad", "cpu:0"), ("check", "cpu:1"), ("commit", "cpu:1"))


@pytest.mark.timeout(90)
def test_a_drafter_defined_in_a_function_reaches_the_workers_again_after_a_restart(clean, truth):
    after = {p[-1]: t[0] for p, t in zip(_prompts(), truth, strict=True)}  # closed over: a real closure travels

    class Knows:
        """Drafts the first token of each answer, which is right once per prompt."""

        signature = Signature(
            inputs=(Port("tail", ("N",), "int64"), Port("depth", ("N",), "int64")),
            outputs=(Port("drafts", ("N", "K"), "int64"),),
        )

        def __init__(self, context):
            pass

        def __call__(self, call, inputs, outputs):
            said = torch.tensor([after.get(int(t), 0) for t in inputs["tail"]])
            outputs["drafts"].copy_(said[:, None].expand_as(outputs["drafts"]))

    wishes = {"num_speculative_tokens": 2, "max_num_seqs": 3, "stages": {"mine": Knows}}
    with open_pipeline(with_drafter("mine", PLACED), runtime="zmq", **wishes) as pipeline:
        outputs = pipeline.generate(_prompts(), max_new_tokens=24, ignore_eos=True)
        assert [o.token_ids for o in outputs] == truth
        assert all(o.counts.accepted[0] >= 1 for o in outputs)
        pipeline.engine.runtime._roster.children[0].process.kill()
        assert decode(pipeline) == truth


def _prompts() -> list[tuple[int, ...]]:
    from decoding import PROMPTS

    from draftline.runtime.text import Text
    from draftline.stages.models.registry import PACKAGED

    text = Text(PACKAGED / "tiny-v4")
    return [text.encode(p) for p in PROMPTS]


@pytest.mark.timeout(90)
def test_a_drafter_defined_in_a_script(clean, tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        textwrap.dedent("""
        from dataclasses import replace
        from draftline.graph.yaml import load_graph
        from draftline.runtime.pipeline import open_pipeline
        from draftline.stages.draft_ngram import DraftNgram

        class Mine(DraftNgram):
            pass

        if __name__ == "__main__":
            graph = load_graph("ngram.yaml")
            draft = replace(graph.node("draft"), stage="__main__:Mine")
            graph = replace(graph, nodes=(draft, *graph.nodes[1:]))
            for runtime in ("inline", "zmq"):
                with open_pipeline(graph, runtime=runtime) as pipeline:
                    print(pipeline.generate(["a b c a b"], max_new_tokens=16)[0].token_ids)
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr
    inline, zmq = done.stdout.splitlines()
    assert inline == zmq


@pytest.mark.timeout(60)
def test_a_stage_that_cannot_travel_is_named(clean):
    lock = threading.Lock()

    class Held:
        signature = Signature(
            inputs=(Port("tail", ("N",), "int64"), Port("depth", ("N",), "int64")),
            outputs=(Port("drafts", ("N", "K"), "int64"),),
        )

        def __init__(self, context):
            self.lock = lock

        def __call__(self, call, inputs, outputs):
            outputs["drafts"].fill_(0)

    graph = with_drafter("held")
    with pytest.raises(UsageError, match=r"stage 'held' cannot be sent to a worker process: TypeError: cannot pickle"):
        open_pipeline(graph, runtime="zmq", num_speculative_tokens=2, stages={"held": Held})
    with open_pipeline(graph, num_speculative_tokens=2, stages={"held": Held}) as pipeline:  # inline it can stay
        assert pipeline.generate(["x"], max_new_tokens=2)


def test_what_is_no_stage_class_is_named():
    with pytest.raises(GraphError, match="stage 'mine': <class 'int'> has no class attribute 'signature'"):
        open_pipeline("ar.yaml", stages={"mine": int})
