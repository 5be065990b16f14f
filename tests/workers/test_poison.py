"""A request that makes a stage fail every time fails alone; the others get their tokens."""

from __future__ import annotations

import pytest
import traps
from decoding import NEW, PROMPTS, decode

from draftline.graph.errors import WorkerLostError
from draftline.graph.yaml import load_graph
from draftline.runtime.pipeline import open_pipeline


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("runtime", "place", "harm"),
    [
        ("inline", "verify", "raise"),
        ("inline", "prefill", "raise"),
        ("zmq", "verify", "raise"),
        ("zmq", "prefill", "raise"),
        ("zmq", "verify", "kill"),
    ],
)
def test_poison_fails_its_own_request_alone(clean, truth, runtime, place, harm):
    """A token that makes a stage raise, or kill its worker, every time it is seen."""
    poison = 4001
    graph, prefill = load_graph("mtp-zmq.yaml"), None
    if place == "verify":
        graph = traps.with_trap(graph, place, poison=poison, harm=harm)
    else:
        prefill = traps.prefill_with_trap(poison=poison, harm=harm)
    with open_pipeline(
        graph, prefill=prefill, num_speculative_tokens=3, max_num_seqs=4, runtime=runtime, max_restarts=6
    ) as pipeline:
        bad = (*pipeline.text.encode("x = "), poison, *(() if place == "verify" else (5,)))
        requests = [pipeline.request(p, NEW, ignore_eos=True) for p in PROMPTS]
        requests.insert(1, pipeline.request(bad, NEW, ignore_eos=True))
        outputs = pipeline.run(requests)
        assert [o.token_ids for i, o in enumerate(outputs) if i != 1] == truth
        assert outputs[1].finish_reason == "error"
        what = "ZeroDivisionError" if harm == "raise" else "was killed by SIGKILL"
        assert what in outputs[1].error
        assert pipeline.engine.num_free_pages == pipeline.engine.sizes.geometry().num_pages
        assert decode(pipeline) == truth


@pytest.mark.timeout(60)
def test_workers_that_die_again_and_again_are_given_up(clean):
    """The first call of every start kills its worker, so no call succeeds in between."""
    prefill = traps.prefill_with_trap(poison=5, harm="kill")
    with open_pipeline("mtp-zmq.yaml", prefill=prefill, num_speculative_tokens=1, max_restarts=1) as pipeline:
        with pytest.raises(WorkerLostError, match=r"failed 2 times in a row; the last time: worker 1 .*SIGKILL") as e:
            pipeline.generate([(7, 5, 9), (7, 8)], max_new_tokens=4)
        # Every request has an output, and nothing was made up.
        got = [(o.index, o.token_ids, o.finish_reason) for o in e.value.outputs]
        assert got == [(0, (), "error"), (1, (), "error")]
        assert pipeline.engine.num_free_pages == pipeline.engine.sizes.geometry().num_pages
        with pytest.raises(WorkerLostError):
            pipeline.generate([(7, 8)], max_new_tokens=4)
