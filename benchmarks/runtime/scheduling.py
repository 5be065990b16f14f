"""What scheduling gains: steps prepared ahead, shared prefixes, prompts in pieces.

    python -m benchmarks.runtime.scheduling [--model smollm2 --dtype bf16] [--rounds 7]

Variants take turns, and the tables give medians. *Ahead*: tokens/s over worker processes with a step prepared while the
one before runs, and without. *Prefix*: milliseconds to the first token of a prompt whose first ``--prefix`` tokens
somebody has sent before, and of one that is new. *Pieces*: the longest time between two tokens of a request that
decodes while a prompt of ``--prefix`` tokens comes in, by ``max_num_batched_tokens``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from draftline.runtime.pipeline import Pipeline, open_pipeline
from draftline.runtime.request import Request

PROMPTS = ["def read_lines(path):\n    ", "class Stack:", "import os\n", "The following table lists"]


def tokens_per_second(pipeline: Pipeline, requests: int, new: int) -> float:
    """Of all requests together."""
    began = time.perf_counter()
    outputs = pipeline.generate(PROMPTS[:requests], max_new_tokens=new, ignore_eos=True)
    return sum(len(o.token_ids) for o in outputs) / (time.perf_counter() - began)


def ahead(model: dict[str, Any], rounds: int) -> Table:
    """Tokens/s with and without."""
    table = Table(
        "K", "requests", "one by one", "ahead", "ratio", box=None, title="steps prepared ahead, zmq, tokens/s"
    )
    for k in (0, 3):
        for requests in (1, 4):
            wishes = {**model, "runtime": "zmq", "num_speculative_tokens": k, "max_num_seqs": requests}
            with (
                open_pipeline("mtp.yaml", async_scheduling=False, **wishes) as plain,
                open_pipeline("mtp.yaml", async_scheduling=True, **wishes) as overlapped,
            ):
                rates: list[tuple[float, float]] = []
                for i in range(rounds + 1):
                    pair = [(p, tokens_per_second(p, requests, 64)) for p in (plain, overlapped)[:: 1 - 2 * (i % 2)]]
                    rates.append((dict(pair)[plain], dict(pair)[overlapped]))
            a, b = (statistics.median(side) for side in zip(*rates[1:], strict=True))
            ratio = statistics.median(y / x for x, y in rates[1:])
            table.add_row(str(k), str(requests), f"{a:.1f}", f"{b:.1f}", f"{ratio:.3f}")
    return table


def first_token(pipeline: Pipeline, tokens: tuple[int, ...]) -> float:
    """Milliseconds until the first token."""
    began = time.perf_counter()
    pipeline.run([Request(tokens, 1, ignore_eos=True)])
    return (time.perf_counter() - began) * 1e3


def prefix(model: dict[str, Any], rounds: int, length: int) -> Table:
    """Time to first token of a miss and a hit."""
    table = Table("K", "miss", "hit", "ratio", box=None, title=f"prompts of {length + 8} tokens, ms to the first token")
    for k in (0, 3):
        with open_pipeline("mtp.yaml", num_speculative_tokens=k, max_num_seqs=2, **model) as pipeline:
            vocabulary = pipeline.prepared.shape.vocab_size
            times = []
            for i in range(rounds + 1):
                start = [2 + (7919 * i + 31 * p) % (vocabulary - 2) for p in range(length)]
                first, second = ((*start, *(2 + i + p for p in range(side, side + 8))) for side in (0, 8))
                times.append((first_token(pipeline, first), first_token(pipeline, second)))
        a, b = (statistics.median(side) for side in zip(*times[1:], strict=True))
        table.add_row(str(k), f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}")
    return table


def pieces(model: dict[str, Any], rounds: int, length: int) -> Table:
    """The longest gap between two tokens while a long prompt comes in."""
    table = Table("rows of a step", "longest gap, ms", "first token of the prompt, ms", box=None, title="a long prompt")
    for budget in (64, 256, 4096):
        gaps, firsts = [], []
        wishes = {**model, "max_num_batched_tokens": budget, "prefix_caching": False, "max_num_seqs": 2}
        with open_pipeline("mtp.yaml", num_speculative_tokens=3, **wishes) as pipeline:
            engine = pipeline.engine
            for _ in range(rounds):
                times: dict[int, list[float]] = {0: [], 1: []}
                engine.add(0, pipeline.request(PROMPTS[0], 160, ignore_eos=True))
                for step in range(1000):
                    if step == 10:
                        began = time.perf_counter()
                        engine.add(1, Request(tuple(2 + p % 200 for p in range(length)), 4, ignore_eos=True))
                    engine.step(lambda delta, times=times: times[delta.index].append(time.perf_counter()))
                    if not engine.num_unfinished:
                        break
                gaps.append(max(b - a for a, b in zip(times[0], times[0][1:], strict=False)) * 1e3)
                firsts.append((times[1][0] - began) * 1e3)
        table.add_row(str(budget), f"{statistics.median(gaps):.1f}", f"{statistics.median(firsts):.1f}")
    return table


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="tiny-v4")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prefix", type=int, default=768)
    args = parser.parse_args()
    model = {"model": args.model, "dtype": args.dtype}
    console = Console()
    for table in (
        ahead(model, args.rounds),
        prefix(model, args.rounds, args.prefix),
        pieces(model, args.rounds, args.prefix),
    ):
        console.print(table)
        console.print()


if __name__ == "__main__":
    main()
