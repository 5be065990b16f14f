"""draftline. Options beside the common ones: ``tile`` (1 is the one-row path at K=0), ``mtp``.

Drafters: ``none``, ``draft`` (draft-model.yaml), ``mtp`` (mtp.yaml), ``ngram`` (ngram.yaml).
"""

from __future__ import annotations

import sys
from pathlib import Path

# The script's own folder comes first and would hide the package draftline behind this file.
sys.path = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]

from draftline.runtime.pipeline import open_pipeline  # noqa: E402

sys.path.append(str(Path(__file__).parent))
from wire import Answer, Generate, serve, versions  # noqa: E402

GRAPHS = {"none": "ar.yaml", "draft": "draft-model.yaml", "mtp": "mtp.yaml", "ngram": "ngram.yaml"}


def load(options: dict) -> tuple[Generate, dict[str, str]]:
    wishes = {"model": options["model"], "dtype": "bf16", "threads": options["threads"], "max_model_len": 1024}
    wishes |= {"max_num_seqs": options["batch"], "num_speculative_tokens": options["k"], "tile": options["tile"]}
    wishes["layouts"] = options.get("layouts", "bxs")
    if options["drafter"] == "draft":
        wishes["draft_model"] = options["draft"]
    pipeline = open_pipeline(GRAPHS[options["drafter"]], **wishes)

    def generate(prompts: list[list[int]], new_tokens: int) -> Answer:
        outputs = pipeline.generate([tuple(p) for p in prompts], max_new_tokens=new_tokens, ignore_eos=True)
        # The first token has a step of its own, as a peer's prefill gives it; it says nothing of drafts.
        steps = sum(o.counts.steps - 1 for o in outputs)
        length = sum(o.counts.tokens - 1 for o in outputs) / steps if steps else None
        return [list(o.token_ids) for o in outputs], length

    return generate, versions("draftline", "torch")


if __name__ == "__main__":
    serve(load)
