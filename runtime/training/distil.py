"""The target's own text, in shards on disk: what the head is trained on.

Knows: shards, which prompts are continued and how. Does not know: training. A shard appears whole or not at all, and is
a function of (seed, its number), so a killed run goes on where it was.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftline.stages.models.llama.config import Config
from draftline.stages.models.llama.weights import Weights

from ..text import Text
from .dense import Writer
from .texts import ChatTemplate, prompts

OPENINGS = (
    "",
    "",
    "Write a Python function that",
    "Implement",
    "How do I",
    "Explain",
    "What is",
    "Write a story",
    "List",
)
"""First words of questions; most of them the target finds itself."""
HELD_OUT = 8
"""One text in so many is kept for the evaluation and never trained on; texts of a shard stand in order of length."""


def split(texts: int) -> tuple[Tensor, Tensor]:
    """Rows of a shard of ``texts`` texts that are trained on, and those that are held out; [n] int64 each."""
    rows = torch.arange(texts)
    held = rows % HELD_OUT == HELD_OUT - 1
    return rows[~held], rows[held]


@dataclass(frozen=True)
class Plan:
    """``tokens``: how many to write, prompts included. ``batch`` texts per shard, each of at most ``prompt`` + ``new``
    tokens. ``self_instruct``: share of the shards whose prompts are questions that the target asks itself."""

    tokens: int
    batch: int = 64
    prompt: int = 160
    new: int = 200
    self_instruct: float = 0.25
    seed: int = 0


def distil(
    plan: Plan,
    target: tuple[Config, Weights],
    text: Text,
    template: ChatTemplate | None,
    files: Sequence[Path],
    folder: Path,
    listen: Callable[[int], None],
) -> list[Path]:
    """Write shards until there are enough tokens; ``listen`` hears how many there are. Gives all shards."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(*target, plan.batch, plan.prompt + plan.new)
    shards: list[Path] = []
    total = 0
    for number in itertools.count():
        if total >= plan.tokens:
            return shards
        path = folder / f"{number:05d}.safetensors"
        if not path.exists():
            _write(path, plan, number, writer, text, template, files)
        shards.append(path)
        total += int(load_file(path)["length"].sum())
        listen(total)
    raise AssertionError("itertools.count ended")


def _write(
    path: Path,
    plan: Plan,
    number: int,
    writer: Writer,
    text: Text,
    template: ChatTemplate | None,
    files: Sequence[Path],
) -> None:
    seed = plan.seed * 1_000_003 + number
    g = torch.Generator().manual_seed(seed)
    asks = template is not None and (not files or torch.rand((), generator=g) < plan.self_instruct)
    with torch.inference_mode():
        if asks and template is not None:
            begun = _questions(plan, writer, text, template, g)
        else:
            begun = list(itertools.islice(prompts(files, text, template, plan.prompt, seed), plan.batch))
        begun.sort(key=len)
        # Half are what temperature 0 says, the others wander.
        temperatures = torch.tensor([0.0, 0.4, 0.0, 0.8]).repeat(-(-plan.batch // 4))[: plan.batch]
        texts = writer.write(begun, temperatures, plan.new, g)
    tokens = torch.full((plan.batch, plan.prompt + plan.new), -1, dtype=torch.int32)
    for row, one in zip(tokens, texts, strict=True):
        row[: len(one)] = torch.tensor(one, dtype=torch.int32)
    partial = path.with_suffix(".partial")
    lengths = [torch.tensor([len(t) for t in part], dtype=torch.int32) for part in (begun, texts)]
    save_file({"tokens": tokens, "prompt": lengths[0], "length": lengths[1]}, partial)
    os.replace(partial, path)


def _questions(plan: Plan, writer: Writer, text: Text, template: ChatTemplate, g: torch.Generator) -> list[list[int]]:
    """Prompts that end where the assistant is to speak; the question is the target's own."""
    before, after = template.opening()
    picks = torch.randint(len(OPENINGS), (plan.batch,), generator=g).tolist()
    begun = [list(text.encode(before + OPENINGS[i])) for i in picks]
    room = plan.prompt - len(text.encode(after))
    texts = writer.write(begun, torch.full((plan.batch,), 0.9), min(90, room), g)
    ends = writer.ends
    return [[*(t[:-1] if t[-1] in ends else t)[:room], *text.encode(after)] for t in texts]


def held_out(shards: Sequence[Path]) -> Iterator[list[int]]:
    """The prompts that no step trains on."""
    for path in shards:
        data = load_file(path)
        rows = split(len(data["tokens"]))[1]
        for row, n in zip(data["tokens"][rows], data["prompt"][rows].tolist(), strict=True):
            yield row[:n].tolist()


def frequent(shards: Sequence[Path], vocab_size: int, size: int) -> tuple[Tensor, float]:
    """The ``size`` most frequent tokens [size] int64, ascending, and the share of all tokens that they are."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for path in shards:
        tokens = load_file(path)["tokens"]
        counts += torch.bincount(tokens[tokens >= 0].long(), minlength=vocab_size)
    best = counts.argsort(descending=True, stable=True)[:size]
    return best.sort().values, float(counts[best].sum() / counts.sum())
