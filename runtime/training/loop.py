"""The training loop: shards of text in, a head out; every so often all of its state goes to disk.

Knows: order of the data, optimiser, schedule, checkpoints. Does not know: where text comes from, what a pass sees.

A run that is killed goes on from its last checkpoint as if nothing had happened: data order is a function of (seed,
epoch), so the same losses come again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftline.graph.errors import UsageError
from draftline.stages.kernels.norm import rms_norm
from draftline.stages.models.llama.config import Config
from draftline.stages.models.llama.weights import Weights
from draftline.stages.models.mtp_head.config import HeadConfig
from draftline.stages.models.mtp_head.weights import HeadWeights, assemble_head, head_specs

from .dense import hidden_states
from .distil import split
from .head import losses, unroll

CHECKPOINT = "checkpoint.safetensors"
MICRO = 4
"""Texts whose activations are in memory at once."""


@dataclass(frozen=True)
class Recipe:
    """``depth``: passes. ``batch``: texts per step. ``decay``: weight of each pass's loss relative to the one
    before."""

    steps: int
    depth: int = 4
    batch: int = 16
    lr: float = 1e-3
    warmup: int = 50
    weight_decay: float = 0.01
    decay: float = 0.9
    seed: int = 0
    save_every: int = 50


@dataclass(frozen=True)
class Progress:
    """One step: its number from 1, the loss, and per pass the share of rows that the target agrees with."""

    step: int
    loss: float
    agree: tuple[float, ...]


def initial(c: HeadConfig, target: tuple[Config, Weights], seed: int) -> dict[str, Tensor]:
    """Parameters in float32. The layer's branches add nothing at first and eh_proj passes the hidden state on, so the
    head begins as the target's own output at the position before."""
    g, out = torch.Generator().manual_seed(seed), {}
    for name, spec in head_specs(c).items():
        if spec.kind == "int64":
            continue
        if len(spec.shape) == 1:
            out[name] = torch.zeros(spec.shape) if name.endswith(".bias") else torch.ones(spec.shape)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            out[name] = torch.zeros(spec.shape)
        else:
            out[name] = torch.randn(spec.shape, generator=g) * spec.shape[1] ** -0.5
    d = c.layer.hidden_size
    out["eh_proj.weight"] = 0.02 * torch.randn(d, 2 * d, generator=g) + torch.cat((torch.zeros(d, d), torch.eye(d)), 1)
    out["shared_head.norm.weight"] = target[1].norm.float().clone()
    return out


def batches(shards: Sequence[Path], recipe: Recipe, start: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(tokens [B, L], lengths [B]) from step ``start`` on, for ever; each epoch in an order of its own."""
    trained = [split(_rows(path))[0] for path in shards]
    counts = [len(rows) // recipe.batch for rows in trained]
    total = sum(counts)
    if not total:
        raise UsageError(f"{len(shards)} shards hold no whole batch of {recipe.batch} texts; lower --batch")
    index = [(s, b) for s, n in enumerate(counts) for b in range(n)]
    step = start
    while True:
        g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step // total)
        order = torch.randperm(total, generator=g).tolist()
        for i in order[step % total :]:
            shard, part = index[i]
            data = load_file(shards[shard])
            # Strided, so that a batch holds short and long texts, greedy and drawn ones.
            rows = trained[shard][part : counts[shard] * recipe.batch : counts[shard]]
            length = int(data["length"][rows].max())
            yield data["tokens"][rows, :length].clamp(min=0).long(), data["length"][rows].long()
            step += 1


def _rows(path: Path) -> int:
    with safe_open(path, framework="pt") as file:
        return int(file.get_slice("length").get_shape()[0])


def typed(c: HeadConfig, parameters: dict[str, Tensor], vocab: Tensor | None, dtype: torch.dtype) -> HeadWeights:
    """The head in the compute dtype; gradients flow to the float32 parameters."""
    specs = head_specs(c)
    cast = {n: p.to(dtype) if specs[n].kind == "model" else p for n, p in parameters.items()}
    return assemble_head(c, cast if vocab is None else cast | {"draft_vocab": vocab})


def train(
    c: HeadConfig,
    target: tuple[Config, Weights],
    shards: Sequence[Path],
    vocab: Tensor | None,
    recipe: Recipe,
    work: Path,
    listen: Callable[[Progress], None],
) -> dict[str, Tensor]:
    """Train, or go on training, the head's parameters; float32. Raises UsageError if ``work`` holds another run."""
    parameters = {n: p.requires_grad_() for n, p in initial(c, target, recipe.seed).items()}
    decayed = [p for p in parameters.values() if p.dim() > 1]
    plain = [p for p in parameters.values() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.95))
    done = _restore(work / CHECKPOINT, recipe, repr(c), parameters, optimiser)
    output = target[1].head
    matrix = output if vocab is None else output[vocab].contiguous()
    weights = recipe.decay ** torch.arange(recipe.depth)
    weights = weights / weights.sum()
    data = batches(shards, recipe, done)
    for step in range(done, recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = recipe.lr * _schedule(step, recipe)
        tokens, lengths = next(data)
        torch.manual_seed(recipe.seed * 1_000_003 + step)  # of the rows' order; a restart finds it again
        optimiser.zero_grad(set_to_none=True)
        parts = list(zip(tokens.split(MICRO), lengths.split(MICRO), strict=True))
        each, agree = torch.zeros(recipe.depth), torch.zeros(recipe.depth)
        for part in parts:
            found = _part(c, target, parameters, vocab, matrix, recipe, *part)
            (found[0] @ weights / len(parts)).backward()
            each, agree = each + found[0].detach() / len(parts), agree + found[1] / len(parts)
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        optimiser.step()
        if (step + 1) % recipe.save_every == 0 or step + 1 == recipe.steps:
            _save(work / CHECKPOINT, step + 1, recipe, repr(c), parameters, optimiser)
        listen(Progress(step + 1, float(each @ weights), tuple(agree.tolist())))
    return {n: p.detach() for n, p in parameters.items()}


def _part(
    c: HeadConfig,
    target: tuple[Config, Weights],
    parameters: dict[str, Tensor],
    vocab: Tensor | None,
    matrix: Tensor,
    recipe: Recipe,
    tokens: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """Loss and agreement per pass of some texts; tokens [B, L], lengths [B]."""
    tc, tw = target
    tokens = tokens[:, : int(lengths.max())]
    with torch.no_grad():
        hidden = hidden_states(tc, tw, tokens)
        wanted = rms_norm(hidden, tw.norm, tc.rms_norm_eps)
        following = torch.cat((tokens[:, 1:], tokens[:, :1]), dim=1)
    valid = torch.arange(tokens.shape[1]) < lengths[:, None] - 1
    w = typed(c, parameters, vocab, tw.embed.dtype)
    outputs = unroll(c, w, tw.embed[following], hidden, recipe.depth)
    return losses(c, w, outputs, wanted, valid, matrix)


def _schedule(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    warmup = min(recipe.warmup, recipe.steps // 10)
    if step < warmup:
        return (step + 1) / warmup
    share = (step - warmup) / max(recipe.steps - warmup, 1)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * share))


def _save(path: Path, done: int, recipe: Recipe, head: str, parameters: dict[str, Tensor], optimiser: Any) -> None:
    """All state in one file, which replaces the one before at once."""
    tensors = {f"p.{n}": p.detach() for n, p in parameters.items()}
    for n, p in parameters.items():
        for key in ("exp_avg", "exp_avg_sq"):
            tensors[f"{key}.{n}"] = optimiser.state[p][key]
    meta = {"done": str(done), "recipe": json.dumps(asdict(recipe)), "head": head}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata=meta)
    os.replace(partial, path)


def _restore(path: Path, recipe: Recipe, head: str, parameters: dict[str, Tensor], optimiser: Any) -> int:
    """Steps that were done."""
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        meta = file.metadata()
        held = json.loads(meta["recipe"])
        for f in fields(Recipe):
            if held.get(f.name) != getattr(recipe, f.name) and f.name != "save_every":
                raise UsageError(
                    f"{path}: was trained with {f.name}={held.get(f.name)}, now {getattr(recipe, f.name)} is asked for;"
                    " use the same values to go on, or another --work folder to begin anew"
                )
        if meta["head"] != head:
            raise UsageError(
                f"{path}: is of another head (--model, --window, --draft-vocab); use another --work folder"
            )
        done = int(meta["done"])
        for n, p in parameters.items():
            with torch.no_grad():
                p.copy_(file.get_tensor(f"p.{n}"))
            optimiser.state[p] = {
                "step": torch.tensor(float(done)),
                "exp_avg": file.get_tensor(f"exp_avg.{n}"),
                "exp_avg_sq": file.get_tensor(f"exp_avg_sq.{n}"),
            }
    return done
