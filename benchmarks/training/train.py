"""Train tiny-v4: first the trunk, then (trunk frozen) its MTP layer, distilled from the trunk.

Restartable: every ``--save-every`` seconds a checkpoint goes to ``--out``; the same command continues it.
The learning rate follows the *time* budget (constant, then linear to zero over its last part), so a run
can be given minutes or hours. Run corpus.py first.

    python -m benchmarks.training.train trunk --data DIR --out DIR --minutes 60
    python -m benchmarks.training.train export --data DIR --out DIR --to DIR
    python -m benchmarks.training.generate --data DIR --model DIR
    python -m benchmarks.training.train mtp   --data DIR --out DIR --minutes 25
    python -m benchmarks.training.train export --data DIR --out DIR --to DIR
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.training import forward
from draftline.stages.models.deepseek_v4.config import Config, load_config
from draftline.stages.models.deepseek_v4.weights import Weights, assemble, disassemble, tensor_specs

HERE = Path(__file__).parent


def initial(c: Config, seed: int) -> dict[str, Tensor]:
    """Random official-named float32 tensors."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for name, spec in tensor_specs(c).items():
        t = torch.randn(spec.shape, generator=g) if spec.kind != "int64" else torch.empty(spec.shape).long()
        if name.endswith("tid2eid"):  # spread token ids evenly: each row has distinct experts
            t = torch.stack(
                [torch.randperm(c.n_routed_experts, generator=g)[: spec.shape[1]] for _ in range(spec.shape[0])]
            )
        elif name.endswith(("norm.weight",)):
            t = torch.ones(spec.shape)
        elif name.endswith("_scale"):
            t = torch.full(spec.shape, 0.1)
        elif name.endswith("_base") and spec.shape[0] == (2 + c.hc_mult) * c.hc_mult:
            t = 0.3 * t  # streams must differ from the start, and mostly keep to themselves
            t[2 * c.hc_mult :] += 3.0 * torch.eye(c.hc_mult).flatten()
        elif name.endswith(("_base", "attn_sink", "gate.bias", ".ape")):
            t = torch.zeros(spec.shape)
        elif name == "embed.weight":
            t = 0.5 * t
        elif len(spec.shape) == 2:
            t = t * spec.shape[1] ** -0.5 * (0.5 if name.endswith(("w2.weight", "wo_b.weight")) else 1.0)
        out[name] = t
    return out


def leaves(w: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) of a tree of dataclasses and tuples."""
    if isinstance(w, Tensor):
        yield prefix, w
    elif dataclasses.is_dataclass(w):
        for f in dataclasses.fields(w):
            yield from leaves(getattr(w, f.name), f"{prefix}.{f.name}")
    elif isinstance(w, tuple):
        for i, v in enumerate(w):
            yield from leaves(v, f"{prefix}.{i}")


def rebuild(w: Any, change: Callable[[str, Tensor], Tensor], prefix: str = "") -> Any:
    """The same tree with every tensor changed."""
    if isinstance(w, Tensor):
        return change(prefix, w)
    if dataclasses.is_dataclass(w) and not isinstance(w, type):
        return type(w)(
            **{f.name: rebuild(getattr(w, f.name), change, f"{prefix}.{f.name}") for f in dataclasses.fields(w)}
        )
    if isinstance(w, tuple):
        return tuple(rebuild(v, change, f"{prefix}.{i}") for i, v in enumerate(w))
    return w


FLOAT32 = ("norm", "hc_", ".ape", ".sink", ".bias")
"""Path parts of what inference keeps in float32."""


def as_computed(path: str, t: Tensor) -> Tensor:
    """The dtype a weight has at inference: bf16 matrices, float32 norms, mixes, sinks and biases."""
    keep = t.dtype == torch.int64 or any(part in path for part in FLOAT32)
    return t if keep else t.bfloat16()


def batches(data: np.ndarray, own: np.ndarray | None, length: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Random windows of length + 1 tokens, [batch, length + 1], for ever; half of them whole windows of ``own``
    (generate.py) where there are such."""
    rng = np.random.default_rng(seed)
    windows = None if own is None else own.reshape(-1, length + 1)
    while True:
        starts = rng.integers(0, len(data) - length - 1, batch if windows is None else batch // 2)
        rows = [data[s : s + length + 1] for s in starts]
        if windows is not None:
            rows += list(windows[rng.integers(0, len(windows), batch - len(rows))])
        yield torch.from_numpy(np.stack(rows).astype(np.int64))


def optimisers(params: dict[str, Tensor]) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside layers, AdamW for embeddings, head, mixes, norms and other vectors."""
    inner = {
        k: p
        for k, p in params.items()
        if p.dim() == 2 and not any(s in k for s in ("embed", ".head", "hc_", ".ape", "gate"))
    }
    outer = [p for k, p in params.items() if k not in inner]
    out: list[torch.optim.Optimizer] = [torch.optim.AdamW(outer, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)]
    if inner:
        out.append(
            torch.optim.Muon(
                list(inner.values()), lr=0.01, momentum=0.95, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"
            )
        )
    return out


@dataclasses.dataclass
class Run:
    """Mutable state of one phase: what a checkpoint holds."""

    weights: Weights
    optimisers: list[torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0


def save(path: Path, run: Run) -> None:
    """Atomic checkpoint of weights and optimiser state."""
    tmp = path.with_suffix(".tmp")
    torch.save(
        {
            "weights": dict(leaves(run.weights)),
            "optimisers": [o.state_dict() for o in run.optimisers],
            "step": run.step,
            "seconds": run.seconds,
        },
        tmp,
    )
    os.replace(tmp, path)


def restore(path: Path, run: Run) -> None:
    """Continue from ``path`` if it exists."""
    if not path.exists():
        return
    state = torch.load(path, weights_only=True)
    with torch.no_grad():
        for name, t in leaves(run.weights):
            t.copy_(state["weights"][name])
    for o, s in zip(run.optimisers, state["optimisers"], strict=True):
        o.load_state_dict(s)
    run.step, run.seconds = state["step"], state["seconds"]
    print(f"continuing {path} at step {run.step}, {run.seconds / 60:.1f} min", flush=True)


def loop(
    run: Run,
    path: Path,
    args: argparse.Namespace,
    data: np.ndarray,
    own: np.ndarray | None,
    loss_of: Callable[[Weights, Tensor], dict[str, Tensor]],
    after: Callable[[dict[str, Tensor]], None],
) -> None:
    """Steps until the time budget is used; logs one JSON line every 20 steps."""
    # Before restoring: a checkpoint holds the rates of its moment, not the schedule's.
    base = [[g["lr"] for g in o.param_groups] for o in run.optimisers]
    restore(path, run)
    budget, log = args.minutes * 60, (args.out / f"{path.stem}.log").open("a")
    source = batches(data, own, args.length, args.batch, args.seed + 7919 * run.step + 1)
    saved = began = time.monotonic()
    before = run.seconds
    while run.seconds < budget:
        share = run.seconds / budget
        scale = min(1.0, (run.step + 1) / 50) * min(1.0, max(0.02, (1 - share) / args.decay))
        for o, rates in zip(run.optimisers, base, strict=True):
            for g, r in zip(o.param_groups, rates, strict=True):
                g["lr"] = r * scale
            o.zero_grad(set_to_none=True)
        losses = loss_of(rebuild(run.weights, as_computed), next(source))
        losses["loss"].backward()
        for o in run.optimisers:
            o.step()
        with torch.no_grad():
            after(losses)
        run.step += 1
        losses["lr"] = torch.tensor(run.optimisers[0].param_groups[0]["lr"])
        run.seconds = before + time.monotonic() - began
        if run.step % 20 == 0 or run.step < 4:
            line = {k: round(v.item(), 5) for k, v in losses.items() if v.dim() == 0}
            line |= {
                "step": run.step,
                "min": round(run.seconds / 60, 2),
                "tok_s": round((run.step * args.batch * args.length) / max(run.seconds, 1)),
            }
            print(json.dumps(line), file=log, flush=True)
        if time.monotonic() - saved > args.save_every:
            save(path, run)
            saved = time.monotonic()
    save(path, run)


def trainable(w: Weights, wanted: Callable[[str], bool]) -> Weights:
    """Float32 leaves, with gradients where wanted."""
    return rebuild(w, lambda p, t: t.clone().requires_grad_(wanted(p) and t.is_floating_point()))


def train_trunk(c: Config, args: argparse.Namespace, data: np.ndarray) -> None:
    """Next-token loss, the indexers' imitation loss, and DeepSeek's bias rule for balanced experts."""
    w = trainable(assemble(c, initial(c, args.seed)), lambda p: ".mtp" not in p and ".bias" not in p)
    run = Run(w, optimisers({k: t for k, t in leaves(w) if t.requires_grad}))
    t = forward.tables(c, args.length)

    def loss_of(weights: Weights, block: Tensor) -> dict[str, Tensor]:
        streams, index_loss, load = forward.trunk(c, weights, block[:, :-1], t)
        ce = F.cross_entropy(forward.head(c, weights, streams).flatten(0, 1), block[:, 1:].flatten())
        return {"loss": ce + 0.1 * index_loss, "ce": ce.detach(), "index": index_loss.detach(), "load": load}

    def balance(losses: dict[str, Tensor]) -> None:
        even = c.num_experts_per_tok / c.n_routed_experts
        for layer, load in zip(run.weights.layers, losses["load"], strict=True):
            if layer.ffn.bias is not None:
                layer.ffn.bias.add_(2e-3 * torch.sign(even - load))

    compiled = torch.compile(loss_of) if args.compile else loss_of
    loop(run, args.out / "trunk.pt", args, data, None, compiled, balance)


def train_mtp(c: Config, args: argparse.Namespace, data: np.ndarray) -> None:
    """Distil the frozen trunk into the MTP layer, unrolled over its own output ``--depth`` deep."""
    w = trainable(assemble(c, initial(c, args.seed)), lambda p: ".mtp" in p and ".bias" not in p)
    trunk_state = torch.load(args.out / "trunk.pt", weights_only=True)["weights"]
    with torch.no_grad():
        for name, leaf in leaves(w):
            if ".mtp" not in name:
                leaf.copy_(trunk_state[name])
    start = args.out / "mtp.pt"
    if not start.exists():  # the last layer has learned most of what the MTP layer needs
        with torch.no_grad():
            last = dict(leaves(w.layers[-1]))
            for name, leaf in leaves(w.mtp.layer):  # type: ignore[union-attr]
                if name in last:
                    leaf.copy_(last[name])
    run = Run(w, optimisers({k: t for k, t in leaves(w) if t.requires_grad}))
    t = forward.tables(c, args.length)

    def loss_of(weights: Weights, block: Tensor) -> dict[str, Tensor]:
        tokens = block[:, :-1]
        with torch.no_grad():
            streams, _, _ = forward.trunk(c, weights, tokens, t)
            target = forward.head(c, weights, streams)
            wanted, best = (target / args.sharpen).softmax(-1), target.argmax(-1)
        out, total = {}, torch.zeros(())
        for j, logits in enumerate(forward.mtp_unrolled(c, weights, tokens, streams, args.depth, t), 1):
            # Row i of depth j is judged by what the target says at row i + 1.
            got, want, top = logits[:, j - 1 : -1], wanted[:, j:], best[:, j:]
            total = total + -(want * got.log_softmax(-1)).sum(-1).mean() * 0.8 ** (j - 1)
            out[f"agree{j}"] = (got.detach().argmax(-1) == top).float().mean()
        return {"loss": total, **out}

    compiled = torch.compile(loss_of) if args.compile else loss_of
    own = np.fromfile(args.data / "own.bin", dtype="<u2") if (args.data / "own.bin").exists() else None
    loop(run, start, args, data, own, compiled, lambda _: None)


def export(c: Config, args: argparse.Namespace) -> None:
    """Write config.json, model.safetensors (bf16, official names) and tokenizer.json to ``--to``."""
    phase = "mtp.pt" if (args.out / "mtp.pt").exists() else "trunk.pt"
    state = torch.load(args.out / phase, weights_only=True)["weights"]
    w = rebuild(assemble(c, initial(c, args.seed)), lambda p, t: as_computed(p, state[p]))
    args.to.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.contiguous() for k, v in disassemble(c, w)}
    save_file(tensors, args.to / "model.safetensors", metadata={"format": "pt"})
    (args.to / "config.json").write_text((HERE / "tiny-v4.json").read_text())
    (args.to / "tokenizer.json").write_bytes((args.data / "tokenizer.json").read_bytes())
    assert set(load_file(args.to / "model.safetensors")) == set(tensor_specs(c))
    print(f"{sum(v.numel() for v in tensors.values()) / 1e6:.2f} M parameters from {phase}")


def evaluate(c: Config, args: argparse.Namespace) -> None:
    """Held-out loss (nats per token) of the trunk."""
    state = torch.load(args.out / "trunk.pt", weights_only=True)["weights"]
    w = rebuild(assemble(c, initial(c, args.seed)), lambda p, t: as_computed(p, state[p]))
    data = np.fromfile(args.data / "heldout.bin", dtype="<u2")
    t, total, n = forward.tables(c, args.length), 0.0, 0
    with torch.no_grad():
        for start in range(0, len(data) - args.length - 1, args.length):
            x = torch.from_numpy(data[start : start + args.length + 1].astype(np.int64))[None]
            streams, _, _ = forward.trunk(c, w, x[:, :-1], t)
            total += F.cross_entropy(forward.head(c, w, streams)[0], x[0, 1:]).item()
            n += 1
    print(json.dumps({"heldout_ce": round(total / n, 4), "perplexity": round(math.exp(total / n), 2), "windows": n}))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("phase", choices=["trunk", "mtp", "export", "evaluate"])
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--to", type=Path)
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--sharpen", type=float, default=0.5)
    p.add_argument("--decay", type=float, default=0.35, help="last share of the budget in which the rate falls")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--save-every", type=float, default=120)
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    c = load_config(HERE / "tiny-v4.json")
    if args.phase == "export":
        return export(c, args)
    if args.phase == "evaluate":
        return evaluate(c, args)
    data = np.fromfile(args.data / "train.bin", dtype="<u2")
    (train_trunk if args.phase == "trunk" else train_mtp)(c, args, data)


if __name__ == "__main__":
    main()
