"""Packed waves in worker processes: the tokens and waves of the inline runtime, also where overlap was wanted."""

from __future__ import annotations

import pytest
from decoding import NEW, PROMPTS

from draftline.runtime.pipeline import open_pipeline


@pytest.mark.timeout(90)
def test_zmq_equals_inline_and_plain_decoding(clean):
    wishes = {"num_speculative_tokens": 9, "max_num_seqs": 3, "layouts": "packed"}
    seen = []
    for graph, runtime in (("ar.yaml", "inline"), ("mtp-zmq.yaml", "inline"), ("mtp-zmq.yaml", "zmq")):
        changes = {"num_speculative_tokens": 0} if graph == "ar.yaml" else {}
        with open_pipeline(graph, runtime=runtime, **{**wishes, **changes}) as pipeline:
            outputs = pipeline.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
            assert str(pipeline.prepared.plan()[0].layout.chosen) == "packed T8"
            seen.append(([o.token_ids for o in outputs], pipeline.engine.runtime.totals.waves))
    (plain, _), inline, zmq = seen
    assert inline == zmq
    assert inline[0] == plain
