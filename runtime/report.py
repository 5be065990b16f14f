"""What a run prints. Knows: JSON lines, text, the summary. Does not know: how tokens came about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from draftline.stages.sampling.params import TokenLogprobs

from .calibration import Record
from .request import Output


def json_line(prompt: str, text: str, output: Output) -> str:
    """One object per prompt, in ASCII: no character in it can be taken for the end of a line. The keys are documented
    in README.md; ``timing`` is in seconds."""
    k, counts = output.num_speculative_tokens, output.counts
    return json.dumps(
        {
            "prompt": prompt,
            "text": text,
            "token_ids": list(output.token_ids),
            "finish_reason": output.finish_reason,
            "num_steps": counts.steps,
            "num_draft_tokens": counts.num_draft_tokens,
            "num_accepted_tokens": counts.num_accepted_tokens,
            "acceptance_per_position": [round(a, 4) for a in counts.per_position(k)],
            "mean_acceptance_length": round(counts.mean_acceptance_length, 4),
            "num_speculative_tokens": k,
            **({} if output.error is None else {"error": output.error}),
            **({"logprobs": [_logprob(one) for one in output.logprobs]} if output.logprobs else {}),
            "timing": {"prefill": round(output.prefill_seconds, 6), "decode": round(output.decode_seconds, 6)},
        }
    )


def _logprob(one: TokenLogprobs) -> dict[str, Any]:
    top = [{"token_id": token, "logprob": round(value, 6)} for token, value in one.top]
    return {"token_id": one.token, "logprob": round(one.logprob, 6), "rank": one.rank, "top": top}


def costs_table(record: Record) -> str:
    """What a calibration found: calls of stages, then whole steps."""
    lines = [f"measured for max_num_seqs={record.max_num_seqs}, K up to {record.k_max}"]
    rows = [("stage", "width", "us")]
    rows += [(e.stage, str(e.width or "any"), f"{e.micros:.1f}") for e in record.entries]
    rows += [(f"step K={s.depth}", f"{s.requests} req", f"{s.micros:.1f}") for s in record.steps]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join([*lines, *(f"  {a:{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)])


def summary(outputs: Sequence[Output], seconds: float, waves: int, captures: int, file: IO[str]) -> None:
    """A table of the run: one line per request, totals below."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("request", "prompt", "new", "finish", "steps", "drafted", "accepted", "tokens/step"):
        table.add_column(name, justify="left" if name == "finish" else "right")
    for o in outputs[:20]:
        c = o.counts
        numbers = (c.steps, c.num_draft_tokens, c.num_accepted_tokens, f"{c.mean_acceptance_length:.2f}")
        table.add_row(str(o.index), str(len(o.prompt)), str(len(o.token_ids)), o.finish_reason, *map(str, numbers))
    console = Console(file=file, highlight=False)
    console.print(table, soft_wrap=True)
    if len(outputs) > 20:
        console.print(f"… and {len(outputs) - 20} more requests", soft_wrap=True)
    tokens, steps = sum(len(o.token_ids) for o in outputs), sum(o.counts.steps for o in outputs)
    console.print(
        f"{tokens} tokens in {seconds:.2f} s, {tokens / max(seconds, 1e-9):.1f} tokens/s;"
        f" {tokens / max(steps, 1):.2f} tokens per step; {waves} waves, {captures} segments captured at start-up",
        soft_wrap=True,
    )
