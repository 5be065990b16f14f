"""Calls that nobody waits for any more, and pipelines that are closed: what comes next is right all the same."""

from __future__ import annotations

import os
import signal

import pytest
import traps
from decoding import NEW, PROMPTS, decode

from draftline.graph.errors import StageError, WorkerLostError
from draftline.graph.yaml import load_graph
from draftline.runtime.pipeline import open_pipeline


class Stopped(Exception):
    pass


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("runtime", "replicas"), [("inline", 1), ("zmq", 1), ("zmq", 2)])
def test_a_run_that_was_given_up_leaves_nothing_in_the_next(clean, truth, runtime, replicas):
    """The listener raises in the middle; then an interrupt in the middle of a step."""
    with open_pipeline("mtp.yaml", runtime=runtime, replicas=replicas, max_num_seqs=2) as pipeline:

        def listen(delta):
            if raising:
                raise Stopped

        raising = True
        with pytest.raises(Stopped):
            decode(pipeline, listen)
        raising = False
        assert decode(pipeline, listen) == truth
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(KeyboardInterrupt):
                decode(pipeline, new=200)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert decode(pipeline) == truth
        for engine in pipeline.engines:
            assert engine.num_free_pages == engine.sizes.geometry().num_pages


@pytest.mark.timeout(60)
def test_a_lone_request_survives_any_number_of_deaths_with_steps_in_between(clean, truth):
    with open_pipeline("mtp.yaml", runtime="zmq", num_speculative_tokens=1, max_num_seqs=1) as pipeline:
        runtime, steps = pipeline.engine.runtime, 0

        def listen(delta):
            nonlocal steps
            steps += 1
            if steps in (2, 4, 6, 8):
                os.kill(runtime.pids[0], signal.SIGKILL)

        [output] = pipeline.generate(PROMPTS[:1], listen, max_new_tokens=NEW, ignore_eos=True)
        assert (output.token_ids, output.error) == (truth[0], None)
        assert runtime.totals.restarts == 4


@pytest.mark.timeout(60)
def test_a_closed_pipeline_says_so(clean):
    with open_pipeline("mtp.yaml", runtime="zmq") as pipeline:
        pass
    with pytest.raises(WorkerLostError, match="the runtime is closed"):
        decode(pipeline)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["漢字" * 30_000, "no such file: \udce9"], ids=["long", "surrogate"])
def test_what_a_stage_says_in_any_script_comes_through(clean, monkeypatch, tmp_path, text):
    words = tmp_path / "words"
    words.write_text(text, "utf-8", "surrogatepass")
    graph = traps.with_trap(load_graph("mtp.yaml"), "verify", poison=5, harm=f"say {words}")
    with open_pipeline(graph, runtime="zmq", max_num_seqs=1) as pipeline:
        seen = []
        monkeypatch.setattr(pipeline.engine.observer, "failed", seen.append)
        [output] = pipeline.generate([(7, 8, 5)], max_new_tokens=4)
        assert output.finish_reason == "error"
        assert [type(e) for e in seen] == [StageError]
        assert f"raised RuntimeError: {text[:12]}" in output.error
        assert pipeline.engine.runtime.totals.restarts == 0
