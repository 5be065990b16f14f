"""Adaptive depth against every fixed depth, per kind of text: SmolLM2 with its MTP head, batch 1, temperature 0.

Each prompt is decoded at every fixed K and adaptively in turn, so a slow moment of the machine hits all of them alike.
``adversarial``: prompts of random tokens. ``--worst`` drafts with a head of random weights, of whose drafts the target
accepts none. What counts is a suite's tokens over its seconds, and the ratio of that.

    python -m benchmarks.adaptive [--prompts 6] [--new 128] [--depths 0 1 2 3 4] [--most 7] [--worst] [--json]
"""

from __future__ import annotations

import argparse
import atexit
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from benchmarks.smollm2 import suites
from draftline.runtime.pipeline import Pipeline, open_pipeline
from draftline.stages.models.registry import locate

AUTO = "auto"


@dataclass(frozen=True)
class Result:
    """Tokens per second and per step of one suite; ``depth`` is K or ``auto``."""

    suite: str
    depth: int | str
    speed: float
    length: float


def random_head(model: str, mtp: str) -> str:
    """A copy of the head with random weights, in a temporary folder."""
    head, folder = locate(model, mtp).mtp, Path(tempfile.mkdtemp(prefix="draftline-head-"))
    atexit.register(shutil.rmtree, folder)
    assert head is not None
    g = torch.Generator().manual_seed(0)
    tensors = load_file(head / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() == 2:
            tensors[name] = (torch.randn(tensor.shape, generator=g) * tensor.float().std()).to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors")
    shutil.copy2(head / "config.json", folder)
    return str(folder)


def prompts_of(pipeline: Pipeline, model: str, most: int) -> dict[str, list[tuple[int, ...]]]:
    """Token ids by suite."""
    found = {name: [pipeline.text.encode(t) for t in texts] for name, texts in suites(model, most).items()}
    random = np.random.default_rng(0).integers(1000, 49000, size=(most, 48))
    return {**found, "adversarial": [tuple(map(int, row)) for row in random]}


def measure(args: argparse.Namespace) -> list[Result]:
    """Every suite at every depth."""
    wishes = {"model": args.model, "mtp": args.mtp, "dtype": args.dtype, "max_num_seqs": 1, "max_model_len": 1024}
    out = []
    with (
        open_pipeline(args.graph, num_speculative_tokens=max(args.depths), **wishes) as fixed,
        open_pipeline(args.graph, num_speculative_tokens=f"auto:{args.most}", **wishes) as adaptive,
    ):
        for suite, prompts in prompts_of(fixed, args.model, args.prompts).items():
            totals = {depth: np.zeros(3) for depth in [*args.depths, AUTO]}
            for i, prompt in enumerate(prompts):
                for depth, total in totals.items():
                    pipeline = adaptive if depth == AUTO else fixed
                    asked = None if depth == AUTO else depth
                    [o] = pipeline.run(
                        [pipeline.request(prompt, args.new, num_speculative_tokens=asked, ignore_eos=True)]
                    )
                    if i:  # the first prompt warms up
                        total += (o.counts.tokens, o.decode_seconds, o.counts.steps)
            out += [Result(suite, d, t / s, t / n) for d, (t, s, n) in totals.items()]
    return out


def main(argv: Sequence[str] | None = None) -> None:
    """Print one line per suite and depth."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="smollm2")
    p.add_argument("--mtp", default="")
    p.add_argument("--graph", default="mtp.yaml")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--depths", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    p.add_argument("--most", type=int, default=7)
    p.add_argument("--prompts", type=int, default=6)
    p.add_argument("--new", type=int, default=128)
    p.add_argument("--worst", action="store_true", help="draft with a head of random weights")
    p.add_argument("--json", action="store_true")
    args = p.parse_args(argv)
    if args.worst:
        args.mtp = random_head(args.model, args.mtp)
    results = measure(args)
    if args.json:
        print(json.dumps([asdict(r) for r in results]))
        return
    table = Table(title=f"{args.model}, {args.graph}, {args.dtype}, {args.new} new tokens", box=None)
    for name in ("suite", "K", "tokens/step", "tokens/s", "over best fixed", "over K=0"):
        table.add_column(name, justify="right")
    for r in results:
        same = {x.depth: x.speed for x in results if x.suite == r.suite}
        best = max(speed for depth, speed in same.items() if depth != AUTO)
        over = (f"{r.speed / best:.3f}", f"{r.speed / same[0]:.3f}" if 0 in same else "")
        table.add_row(r.suite, str(r.depth), f"{r.length:.2f}", f"{r.speed:.1f}", *over)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
