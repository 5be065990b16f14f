"""``draftline-train-mtp``: flags, progress, exit codes (0 done, 2 bad input, 130 interrupted: run it again to go
on)."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from draftline.graph.errors import DraftlineError, ModelError, UsageError
from draftline.stages.models import llama
from draftline.stages.models.jsonfile import read_json
from draftline.stages.models.llama.config import load_config, parse_config
from draftline.stages.models.llama.weights import assemble, optional_names, tensor_specs
from draftline.stages.models.mtp_head.config import HeadConfig
from draftline.stages.models.places import resolve
from draftline.stages.models.registry import family
from draftline.stages.weights.files import load

from ..text import Text
from . import distil, loop
from .evaluate import acceptance
from .texts import ChatTemplate, sources
from .write import write_head

PROG = "draftline-train-mtp"
LAYER_KEYS = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling"),
    *("rope_parameters", "attention_bias", "mlp_bias"),
)
"""Keys of the target's config.json that the head's layer takes over."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog=PROG,
        description="Train an MTP head for a model that has none, on the model's own text. A run that was stopped goes"
        " on when it is started again with the same flags.",
    )
    p.add_argument("--model", required=True, metavar="M", help="the target: a folder, or a name that --model knows")
    p.add_argument("--data", nargs="*", default=[], type=Path, metavar="PATH", help="files and folders with prompts")
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the head's folder, for --mtp")
    p.add_argument("--work", type=Path, metavar="DIR", help="shards and checkpoints; default: OUT.work")
    p.add_argument("--tokens", type=int, default=1_600_000, metavar="N", help="tokens of text that the target writes")
    p.add_argument("--steps", type=int, default=900, metavar="N", help="training steps")
    p.add_argument("--batch", type=int, default=8, metavar="N", help="texts per step")
    p.add_argument("--depth", type=int, default=4, metavar="N", help="drafts in a row that the head is trained for")
    p.add_argument("--save-every", type=int, default=50, metavar="N", help="steps between two checkpoints")
    p.add_argument("--lr", type=float, default=1.5e-3, metavar="X", help="peak learning rate")
    p.add_argument("--draft-vocab", type=int, default=0, metavar="N", help="draft the N commonest tokens only; 0: all")
    p.add_argument("--window", type=int, default=512, metavar="N", help="positions that the head looks back")
    p.add_argument("--self-instruct", type=float, default=0.25, metavar="X", help="share of self-made questions")
    p.add_argument("--eval-prompts", type=int, default=32, metavar="N", help="held-out prompts at the end; 0: none")
    p.add_argument("--threads", type=int, default=0, metavar="N", help="0: torch's default")
    p.add_argument("--seed", type=int, default=0, metavar="N")
    p.add_argument("--json", action="store_true", help="one JSON object per step and one at the end on stdout")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    args = parser().parse_args(argv)
    logging.basicConfig(level="WARNING", format="%(levelname)s %(name)s: %(message)s", force=True)
    try:
        return run(args)
    except DraftlineError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROG}: interrupted; start it again with the same flags to go on", file=sys.stderr)
        return 130


def check(args: argparse.Namespace) -> None:
    """Raises UsageError for a number out of range."""
    zero = ("draft_vocab", "eval_prompts", "threads", "seed")
    for name in ("tokens", "steps", "batch", "depth", "save_every", "window", *zero):
        low = 0 if name in zero else 1
        if getattr(args, name) < low:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(args, name)}; {low} or more is wanted")
    if not 0 <= args.self_instruct <= 1:
        raise UsageError(f"--self-instruct is {args.self_instruct}; a share from 0 to 1 is wanted")
    if not args.lr > 0:
        raise UsageError(f"--lr is {args.lr}; a number above 0 is wanted")
    most = len(distil.split(distil.Plan.batch)[0])
    if args.batch > most:
        raise UsageError(f"--batch is {args.batch}; at most {most} is wanted")


def run(args: argparse.Namespace) -> int:
    """The command after parsing. Raises DraftlineError."""
    check(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = resolve(args.model)
    if family(folder) is not llama.FAMILY:
        raise ModelError(f"model {args.model!r}: heads are trained for {', '.join(llama.FAMILY.model_types)}")
    text, template = Text(folder), ChatTemplate.of(folder)
    files = sources(args.data) if args.data or template is None else []
    c = load_config(folder / "config.json")
    tensors = load(folder, tensor_specs(c), torch.bfloat16, torch.device("cpu"), optional_names(c))
    target = c, assemble(c, tensors)
    work = args.work or args.out.with_name(args.out.name + ".work")
    work.mkdir(parents=True, exist_ok=True)
    raw = read_json(folder / "config.json")
    layer = {k: raw[k] for k in LAYER_KEYS if raw.get(k) is not None} | {"num_hidden_layers": 1}
    head = HeadConfig(args.model, args.window, args.draft_vocab, parse_config(layer))
    with _bar(args.json) as bar:
        shards = _distil(args, target, text, template, files, work, bar)
        vocab, covered = None, 1.0
        if args.draft_vocab:
            vocab, covered = distil.frequent(shards, c.vocab_size, args.draft_vocab)
        parameters = _train(args, head, target, shards, vocab, work, bar)
    write_head(args.out, head, layer, parameters, vocab)
    return _report(args, shards, covered)


def _bar(quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=quiet)


def _distil(
    args: argparse.Namespace,
    target: Any,
    text: Text,
    template: ChatTemplate | None,
    files: list[Path],
    work: Path,
    bar: Progress,
) -> list[Path]:
    plan = distil.Plan(tokens=args.tokens, self_instruct=args.self_instruct, seed=args.seed)
    task = bar.add_task("writing", total=args.tokens, said="")

    def listen(total: int) -> None:
        bar.update(task, completed=min(total, args.tokens), said=f"{total} tokens")

    return distil.distil(plan, target, text, template, files, work / "shards", listen)


def _train(
    args: argparse.Namespace,
    head: HeadConfig,
    target: Any,
    shards: list[Path],
    vocab: torch.Tensor | None,
    work: Path,
    bar: Progress,
) -> dict[str, torch.Tensor]:
    recipe = loop.Recipe(
        steps=args.steps, depth=args.depth, batch=args.batch, lr=args.lr, seed=args.seed, save_every=args.save_every
    )
    task = bar.add_task("training", total=args.steps, said="")

    def listen(p: loop.Progress) -> None:
        agree = " ".join(f"{a:.2f}" for a in p.agree)
        bar.update(task, completed=p.step, said=f"loss {p.loss:.3f}, agreement {agree}")
        if args.json:
            print(json.dumps({"step": p.step, "loss": p.loss, "agreement": p.agree}), flush=True)

    return loop.train(head, target, shards, vocab, recipe, work, listen)


def _report(args: argparse.Namespace, shards: list[Path], covered: float) -> int:
    found: dict[str, Any] = {"out": str(args.out), "draft_vocab_covers": covered}
    if args.eval_prompts:
        prompts = [p for p, _ in zip(distil.held_out(shards), range(args.eval_prompts), strict=False)]
        got = acceptance(args.model, str(args.out), prompts, args.depth, 64)
        found |= {"prompts": got.prompts, "tokens_per_step": got.length, "per_position": got.per_position}
    if args.json:
        print(json.dumps(found))
        return 0
    print(f"{args.out}: ready; use it with --model {args.model} --mtp {args.out}")
    if args.eval_prompts:
        shares = " ".join(f"{a:.2f}" for a in found["per_position"])
        print(f"{found['prompts']} held-out prompts, K={args.depth}: {found['tokens_per_step']:.2f} tokens per step")
        print(f"accepted at position 1 … {args.depth}: {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
