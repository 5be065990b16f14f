"""Packed waves against whole requests: waves and microseconds of a step, side by side on one model.

Two pipelines stand open, one with ``layouts=bxs`` and one with ``layouts=packed``; they decode the same prompts in turn
(A B A B), so a slow moment of the machine hits both alike. A step is a decode step with all requests under way: prefill
is over and nobody has ended. Medians over the rounds; the ratio is the median of the rounds' ratios.

    python -m benchmarks.packed [--model smollm2] [--dtype bf16] [--depths 2 4 5] [--requests 4 8] [--rounds 5]
        [--new 64] [--graph mtp.yaml] [--tile 8]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.smollm2 import PROSE
from draftline.runtime.pipeline import Pipeline, open_pipeline

KINDS = ("bxs", "packed")


@dataclass
class Side:
    """One layout's steps: seconds, verify calls and committed tokens of every round, a step on average."""

    pipeline: Pipeline
    seconds: list[float] = field(default_factory=list)
    waves: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)

    @property
    def layout(self) -> str:
        return str(self.pipeline.prepared.plan()[0].layout.chosen)

    def round(self, prompts: Sequence[str], new: int) -> None:
        """Decode all prompts at once and keep the averages of the steps in which all were under way."""
        engine = self.pipeline.engine
        for index, text in enumerate(prompts):
            engine.add(index, self.pipeline.request(text, new, ignore_eos=True))
        committed: list[int] = []
        engine.step()  # prefill, and the first step
        marks = []
        while True:
            marks.append((time.perf_counter(), engine.runtime.totals.waves, len(committed)))
            if engine.step(lambda _, kept: committed.extend(kept)):
                break
        while engine.num_unfinished:
            engine.step()
        steps = len(marks) - 1
        for kept, first, last in zip((self.seconds, self.waves, self.tokens), marks[0], marks[-1], strict=True):
            kept.append((last - first) / steps)


def measure(k: int, requests: int, args: argparse.Namespace) -> tuple[Side, Side]:
    """Both layouts at one depth, in turn."""
    prompts = [PROSE[i % len(PROSE)] for i in range(requests)]
    wishes = {"model": args.model, "dtype": args.dtype, "tile": args.tile, "max_model_len": 512}
    wishes |= {"num_speculative_tokens": k, "max_num_seqs": requests}
    with ExitStack() as stack:
        sides = [Side(stack.enter_context(open_pipeline(args.graph, layouts=kind, **wishes))) for kind in KINDS]
        for side in sides:
            side.pipeline.generate(prompts, max_new_tokens=8)
        for _ in range(args.rounds):
            for side in sides:
                side.round(prompts, args.new)
        return sides[0], sides[1]


def main(argv: Sequence[str] | None = None) -> None:
    """Print one line per K and number of requests."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="smollm2")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--graph", default="mtp.yaml")
    p.add_argument("--tile", type=int, default=8)
    p.add_argument("--depths", nargs="+", type=int, default=[2, 4, 5])
    p.add_argument("--requests", nargs="+", type=int, default=[4, 8])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--new", type=int, default=64)
    args = p.parse_args(argv)
    what = f"{args.model}, {args.dtype}, {args.graph}, tile {args.tile}, greedy"
    print(f"{what}; a step on average, medians of {args.rounds} rounds")
    head = ("K", "requests", "B×S", "waves", "ms", "packed waves", "packed ms", "B×S ÷ packed", "tokens")
    print("  ".join(head), flush=True)
    for k in args.depths:
        for requests in args.requests:
            whole, packed = measure(k, requests, args)
            ratio = statistics.median(a / b for a, b in zip(whole.seconds, packed.seconds, strict=True))
            cells = [str(k), str(requests), whole.layout]
            for side in (whole, packed):
                cells += [f"{statistics.median(side.waves):.2f}", f"{1e3 * statistics.median(side.seconds):.0f}"]
            cells += [f"{ratio:.2f}", f"{statistics.median(packed.tokens):.2f}"]
            print("  ".join(c.rjust(len(h)) for c, h in zip(cells, head, strict=True)), flush=True)


if __name__ == "__main__":
    main()
