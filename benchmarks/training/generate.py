"""Text in the model's own words: greedy continuations of training text, for distilling the MTP layer.

A drafter is judged on what its target writes, not on what people wrote; half of the MTP phase's batches come from
here. Whole windows of ``--length`` + 1 tokens, each a prompt from the training data and its continuation.

    python -m benchmarks.training.generate --data DIR --model DIR --windows 600
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from draftline.runtime.pipeline import open_pipeline

BATCH = 32


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--windows", type=int, default=600)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--prompt", type=int, default=96)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    train = np.fromfile(args.data / "train.bin", dtype="<u2")
    starts = np.random.default_rng(args.seed).integers(0, len(train) - args.prompt, args.windows)
    pipeline = open_pipeline(
        "ar.yaml", model=args.model, tile=BATCH, max_num_seqs=BATCH, max_model_len=args.length + 1, dtype="bf16"
    )
    with (args.data / "own.bin").open("wb") as file:
        for i in range(0, args.windows, BATCH):
            prompts = [train[s : s + args.prompt].tolist() for s in starts[i : i + BATCH]]
            for o in pipeline.generate(prompts, max_new_tokens=args.length, ignore_eos=True):
                np.asarray([*o.prompt, *o.token_ids], dtype="<u2").tofile(file)
            print(f"{min(i + BATCH, args.windows)} of {args.windows} windows", flush=True)


if __name__ == "__main__":
    main()
