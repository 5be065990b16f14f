"""transformers: plain ``generate``, assisted by a draft model, or by prompt lookup. Eager torch, bf16."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM
from wire import Answer, Generate, serve, versions


def load(options: dict) -> tuple[Generate, dict[str, str]]:
    torch.set_num_threads(options["threads"])
    model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.bfloat16).eval()
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    if options["drafter"] == "draft":
        assistant = AutoModelForCausalLM.from_pretrained(options["draft"], dtype=torch.bfloat16).eval()
        for config in (assistant.generation_config, model.generation_config):
            config.num_assistant_tokens = options["k"]
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0
            config.eos_token_id = None
        settings["assistant_model"] = assistant
    elif options["drafter"] == "ngram":
        settings |= {"prompt_lookup_num_tokens": options["k"], "max_matching_ngram_size": 3}
    calls = [0]
    model.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))

    def generate(prompts: list[list[int]], new_tokens: int) -> Answer:
        calls[0], longest = 0, max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=new_tokens, **settings)
        steps = calls[0] - 1  # one token's worth is the prefill's
        length = (new_tokens - 1) / steps if steps else None
        return out[:, longest:].tolist(), length

    return generate, versions("transformers", "torch")


if __name__ == "__main__":
    serve(load)
