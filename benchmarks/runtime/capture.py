"""Eager beside inductor on the same kernels (plain torch): two pipelines decode the same prompt and take turns, step by
step.

    python -m benchmarks.runtime.capture [--model tiny-v4 smollm2] [--depths 0 3 9] [--max-model-len 128] [--json]

Columns: seconds to open (inductor's are cold if the compile cache has nothing, else warm), captures, the median step of
each, and eager over inductor at the median of the pairs. One deployment of the largest depth serves all depths.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from draftline.runtime.pipeline import Pipeline, open_pipeline

PROMPT = "def read_lines(path):\n    "
DTYPES = {"smollm2": "bf16"}


def opened(model: str, capture: str, k: int, length: int) -> tuple[Pipeline, float]:
    """A pipeline, and the seconds that it took to open."""
    began = time.perf_counter()
    dtype = DTYPES.get(model, "fp32")
    wishes: dict[str, Any] = {"model": model, "capture": capture, "num_speculative_tokens": k, "dtype": dtype}
    wishes |= {"kernels": "reference", "max_num_seqs": 2, "max_model_len": length, "prefill_tile": 8, "threads": 2}
    return open_pipeline("mtp.yaml", **wishes), time.perf_counter() - began


def measure(model: str, depths: list[int], length: int) -> list[dict[str, Any]]:
    """One row per depth."""
    both = {capture: opened(model, capture, max(depths), length) for capture in ("eager", "inductor")}
    rows = []
    for k in depths:
        took: dict[str, list[float]] = {capture: [] for capture in both}
        for pipeline, _ in both.values():
            pipeline.engine.add(0, pipeline.request(PROMPT, length, ignore_eos=True, num_speculative_tokens=k))
            pipeline.engine.step()  # prefill too
        while all(pipeline.engine.num_unfinished for pipeline, _ in both.values()):
            for capture, (pipeline, _) in both.items():
                began = time.perf_counter()
                pipeline.engine.step()
                took[capture].append((time.perf_counter() - began) * 1e3)
        row: dict[str, Any] = {"model": model, "K": k}
        for capture, (pipeline, seconds) in both.items():
            row |= {f"{capture}_open_s": round(seconds, 1), f"{capture}_ms": round(float(np.median(took[capture])), 2)}
            row |= {f"{capture}_captures": pipeline.engine.runtime.captures}
            while pipeline.engine.num_unfinished:
                pipeline.engine.step()
        rows.append(row | {"speedup": round(float(np.median(np.divide(took["eager"], took["inductor"]))), 2)})
    for pipeline, _ in both.values():
        pipeline.close()
    return rows


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", nargs="+", default=["tiny-v4", "smollm2"])
    p.add_argument("--depths", type=int, nargs="+", default=[0, 3, 9])
    p.add_argument("--max-model-len", type=int, default=128)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    rows = [row for model in args.model for row in measure(model, args.depths, args.max_model_len)]
    if args.json:
        print(json.dumps(rows))
        return
    table = Table(title="inductor beside eager, plain torch", box=None)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in rows:
        table.add_row(*(str(v) for v in row.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
