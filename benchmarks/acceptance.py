"""Acceptance of tiny-v4's MTP layer on held-out files, greedy: per position, and tokens per step.

The files are Python's own sources and documentation that the corpus script held out (whole files, by the hash of
their name), read from the running interpreter and from Debian's python3.11-doc where it is installed.

    python -m benchmarks.acceptance [--model tiny-v4] [--depths 1 3 7 9] [--json]
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.training.corpus import DOCS, collect
from draftline.runtime.pipeline import open_pipeline
from draftline.runtime.request import Counts

PROMPT, NEW = 96, 96
"""Tokens of a prompt, and tokens decoded after it."""


def prompts(text: str, encode, every: int) -> list[tuple[int, ...]]:
    """Stretches of PROMPT tokens, ``every`` tokens apart, each followed by text of the file."""
    ids = encode(text)
    return [ids[i : i + PROMPT] for i in range(0, len(ids) - PROMPT - NEW, every)]


def total(counts: Sequence[Counts]) -> Counts:
    """All requests' counts added up."""
    out = Counts()
    for c in counts:
        out.steps, out.tokens = out.steps + c.steps, out.tokens + c.tokens
        for mine, theirs in ((out.proposed, c.proposed), (out.accepted, c.accepted)):
            mine.extend([0] * (len(theirs) - len(mine)))
            for i, n in enumerate(theirs):
                mine[i] += n
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="tiny-v4")
    p.add_argument("--graph", default="mtp.yaml")
    p.add_argument("--dtype", default="fp32")
    p.add_argument("--depths", type=int, nargs="+", default=[1, 3, 7, 9])
    p.add_argument("--every", type=int, default=6000, help="tokens between two prompts of a file")
    p.add_argument("--docs", type=Path, default=DOCS)
    p.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    held = [t for t in collect(args.stdlib, args.docs) if t.held_out]
    rows, plain = [], {}
    for kind in ("code", "docs"):
        for k in (0, *args.depths):
            pipeline = open_pipeline(
                args.graph if k else "ar.yaml", model=args.model, num_speculative_tokens=k, dtype=args.dtype
            )
            wanted = [q for t in held if t.kind == kind for q in prompts(t.text, pipeline.text.encode, args.every)]
            outputs = pipeline.generate(wanted, max_new_tokens=NEW)
            tokens = [o.token_ids for o in outputs]
            assert plain.setdefault(kind, tokens) == tokens, f"K={k} changed a token"
            if k:
                c = total([o.counts for o in outputs])
                row = {"kind": kind, "K": k, "prompts": len(wanted), "tokens": c.tokens}
                row |= {"per_position": [round(a, 3) for a in c.per_position(k)]}
                rows.append(row | {"length": round(c.mean_acceptance_length, 3)})
    if args.json:
        print(json.dumps(rows))
        return
    table = Table(title=f"{args.model}, {args.graph}, greedy, held-out files, {args.dtype}", box=None)
    for name in ("text", "K", "prompts", "tokens", "tokens/step", "accepted at position 1 … K"):
        table.add_column(name, justify="left" if name.startswith(("text", "acc")) else "right")
    for r in rows:
        shares = " ".join(f"{a:.2f}" for a in r["per_position"])
        table.add_row(r["kind"], str(r["K"]), str(r["prompts"]), str(r["tokens"]), f"{r['length']:.2f}", shares)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
