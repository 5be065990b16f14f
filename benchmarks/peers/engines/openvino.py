"""OpenVINO GenAI: continuous batching, or with ``"backend": "SDPA"`` the stateful pipeline (K=0, batch 1).

``model`` and ``draft`` are IR folders that keep bf16 weights; sums in bf16 as the CPU plugin does on such a machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The script's own folder comes first and would hide the package openvino behind this file.
sys.path = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]

import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

sys.path.append(str(Path(__file__).parent))
from wire import Answer, Generate, serve, versions  # noqa: E402


def load(options: dict) -> tuple[Generate, dict[str, str]]:
    threads = {"INFERENCE_NUM_THREADS": options["threads"], "INFERENCE_PRECISION_HINT": "bf16"}
    found = versions("openvino", "openvino-genai")
    config = genai.GenerationConfig()
    config.do_sample, config.ignore_eos, config.apply_chat_template = False, True, False
    if options.get("backend") == "SDPA":
        stateful = genai.LLMPipeline(options["model"], "CPU", ATTENTION_BACKEND="SDPA", **threads)

        def plain(prompts: list[list[int]], new_tokens: int) -> Answer:
            config.max_new_tokens = new_tokens
            result = stateful.generate(ov.Tensor(np.array(prompts, dtype=np.int64)), config)
            return [list(map(int, t)) for t in result.tokens], 1.0

        return plain, found
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching, scheduler.max_num_seqs = False, max(options["batch"], 1)
    scheduler.cache_size = 1  # GiB
    extra = dict(threads)
    if options["drafter"] == "draft":
        extra["draft_model"] = genai.draft_model(options["draft"], "CPU", **threads)
        config.num_assistant_tokens = options["k"]
    elif options["drafter"] == "ngram":
        extra["prompt_lookup"] = True
        config.num_assistant_tokens, config.max_ngram_size = options["k"], 3
    pipeline = genai.ContinuousBatchingPipeline(options["model"], scheduler, "CPU", extra)

    def generate(prompts: list[list[int]], new_tokens: int) -> Answer:
        config.max_new_tokens = new_tokens
        tensors = [ov.Tensor(np.array([p], dtype=np.int64)) for p in prompts]
        results = pipeline.generate(tensors, [config] * len(prompts))
        return [list(map(int, r.m_generation_ids[0])) for r in results], tokens_per_step(results, options)

    return generate, found


def tokens_per_step(results: list, options: dict) -> float | None:
    """From the pipeline's own counters, where it keeps them: batch 1 with a draft model."""
    if options["drafter"] == "none":
        return 1.0
    metrics = getattr(results[0], "extended_perf_metrics", None)
    main = getattr(metrics, "main_model_metrics", None)
    if main is None or len(results) > 1:
        return None
    steps = len(main.raw_metrics.m_batch_sizes) - 1  # the prefill gives the first token
    return (len(results[0].m_generation_ids[0]) - 1) / steps if steps else None


if __name__ == "__main__":
    serve(load)
