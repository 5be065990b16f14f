"""A graph and a model, opened for use: what the command line and a Python caller both start from.

from draftline.runtime.pipeline import open_pipeline
pipeline = open_pipeline("mtp.yaml", num_speculative_tokens=3)
for output in pipeline.generate(["def main():"], max_new_tokens=32):
    print(pipeline.text.decode(output.token_ids))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftline.compiler.cache import CacheReport
from draftline.compiler.compile import Dump
from draftline.compiler.plan import Plan
from draftline.graph.core import Graph
from draftline.graph.errors import UsageError
from draftline.graph.yaml import load_graph, resolve_prefill
from draftline.stages.models.core import Shape
from draftline.stages.models.registry import read_shape, resolve
from draftline.stages.registry import lookup as builtin_lookup

from .deployment import Compiler, Lookup, Sizes, check, load, needs_mtp
from .engine import Engine, Listener
from .request import Output, Request
from .settings import Settings, merge, sizes
from .text import Text

PLAIN_PREFILL = "prefill.yaml"


@dataclass(frozen=True)
class Prepared:
    """Everything that is known before weights are read: enough to explain a plan."""

    graph: Graph
    prefill: Graph
    settings: Settings
    sizes: Sizes
    shape: Shape
    folder: Path
    compiler: Compiler

    def plan(self, dump: Dump | None = None) -> tuple[Plan, CacheReport | None]:
        """The plan for this K."""
        return self.compiler.plan(self.graph, self.sizes.k_max, dump)


def prepare(
    graph: Graph | str,
    *,
    source: str | None = None,
    prefill: Graph | None = None,
    plan_cache: Path | None = None,
    lookup: Lookup = builtin_lookup,
    **wishes: Any,
) -> Prepared:
    """Load the graph and check it against the model and the wishes (names of a graph's ``settings``).

    ``source`` is the path or name that a ``Graph`` came from: its prefill graph is looked for beside it.
    Raises GraphError, UsageError, ModelError.
    """
    if isinstance(graph, str):
        source, graph = graph, load_graph(graph)
    settings = merge(graph, wishes)
    folder = resolve(settings.model)
    shape = read_shape(folder)
    chosen = sizes(settings, shape)
    check(graph, shape, chosen, settings.model)
    if prefill is None and chosen.k_max == 0:
        prefill = load_graph(PLAIN_PREFILL)  # nothing drafts, so the drafter's cache stays unused
    if prefill is None:
        prefill = resolve_prefill(graph, source)
    if prefill is None:
        raise UsageError(f"graph {graph.name!r} names no prefill graph; add the key prefill, such as {PLAIN_PREFILL}")
    return Prepared(graph, prefill, settings, chosen, shape, folder, Compiler(chosen, shape, lookup, plan_cache))


class Pipeline:
    """An engine with its tokenizer."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.text = Text(prepared.folder)
        model = load(prepared.settings.model, prepared.sizes)
        if not (prepared.sizes.k_max and needs_mtp(prepared.graph)):
            model = replace(model, drafter=None)
        self.engine = Engine(prepared.graph, prepared.prefill, model, prepared.compiler)

    def request(self, prompt: str | Sequence[int], max_new_tokens: int | None = None, **options: Any) -> Request:
        """A request from text or token ids; limits that are not given come from the settings."""
        ids = self.text.encode(prompt) if isinstance(prompt, str) else tuple(prompt)
        limit = self.prepared.settings.max_new_tokens if max_new_tokens is None else max_new_tokens
        return Request(ids, limit, **options)

    def generate(
        self, prompts: Sequence[str | Sequence[int]], listen: Listener | None = None, **options: Any
    ) -> list[Output]:
        """Run all prompts to their ends, in order. Raises RequestError before anything runs."""
        return self.engine.generate([self.request(p, **options) for p in prompts], listen)


def open_pipeline(graph: Graph | str, **wishes: Any) -> Pipeline:
    """``prepare`` and load. See the module's docstring."""
    return Pipeline(prepare(graph, **wishes))
