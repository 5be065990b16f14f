"""A drafter that knows the future, and spoils it as told. Helper for tests; no tests in here.

Used in a graph as ``replay:ReplayDraft``. It finds the request's history among ``KNOWN`` token sequences and
drafts what follows there, so a real model accepts real drafts; ``mode`` says where it lies.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from draftline.graph.core import Graph, Port, Signature
from draftline.graph.yaml import load_graph

KNOWN: list[list[int]] = []
"""Prompt plus K=0 continuation of every request; a test fills it."""

MODES = ("right", "wrong", "until", "random")


class ReplayDraft:
    """Ports of draft.ngram. ``right``: the truth; ``wrong``: never; ``until``: right for ``j`` drafts; ``random``:
    each draft is right two times in three."""

    signature = Signature(
        inputs=(
            Port("history", ("N", "L"), "int64"),
            Port("position", ("N",), "int64"),
            Port("depth", ("N",), "int64"),
        ),
        outputs=(Port("drafts", ("N", "K"), "int64"), Port("depth", ("N",), "int64")),
        options=(("mode", "right"), ("j", 2)),
    )

    def __init__(self, context, mode: str = "right", j: int = 2) -> None:
        self.k, self.mode, self.j = context.dims["K"], mode, j

    def __call__(self, call, inputs, outputs) -> None:
        outputs["depth"].copy_(inputs["depth"])
        outputs["drafts"].zero_()
        for n, position in enumerate(inputs["position"].tolist()):
            if position < 0:
                continue
            history = inputs["history"][n, : position + 1].tolist()
            [truth] = {tuple(t[len(history) :]) for t in KNOWN if t[: len(history)] == history}
            g = torch.Generator().manual_seed(position)
            for i, token in enumerate(truth[: self.k]):
                lie = {"right": False, "wrong": True, "until": i >= self.j, "random": torch.rand(1, generator=g) < 0.33}
                outputs["drafts"][n, i] = (token + 1) % 256 if lie[self.mode] else token


def graph(mode: str, j: int = 2) -> Graph:
    """ngram.yaml with this drafter in the place of its own."""
    base = load_graph("ngram.yaml")
    options = (("j", j), ("mode", mode))
    nodes = [replace(n, stage="replay:ReplayDraft", options=options) if n.name == "draft" else n for n in base.nodes]
    return replace(base, nodes=tuple(nodes))
