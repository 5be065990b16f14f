"""bind: a verified graph, its symbols as integers, its stages with their options complete.

Knows: registry look-up, symbols, options, placement names. Does not know: loops, layouts, memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from draftline.compiler.core import IR, LATE, MODEL_DTYPES, BoundStage, Deployment, Lookup, signature_of
from draftline.compiler.plan import Scalar
from draftline.graph.core import Graph, Node, Repeat
from draftline.graph.errors import PlanError, nearest
from draftline.graph.verify import infer


@dataclass(frozen=True)
class Bind:
    """Fills ``dims`` and ``stages``. Raises GraphError for a graph that breaks a rule, PlanError for a
    deployment that makes no sense or a symbol without a value."""

    lookup: Lookup
    name: str = "bind"

    def run(self, ir: IR) -> IR:
        check_deployment(ir.deployment)
        infer(ir.graph, self.lookup)
        dims = graph_dims(ir.deployment)
        unknown = [(s, where) for s, where in _symbols(ir.graph, "") if s not in dims and s not in LATE]
        if unknown:
            listed = ", ".join(f"{symbol!r} of {where}" for symbol, where in unknown)
            raise PlanError(
                f"graph {ir.graph.name!r} uses symbols that have no value: {listed}"
                + nearest(unknown[0][0], [*dims, *LATE]),
                rule="SymbolsBound",
            )
        return replace(
            ir,
            dims=tuple(sorted(dims.items())),
            stages=tuple(_bind(path, node, self.lookup) for path, node in stage_nodes(ir.graph)),
        )


def check_deployment(deployment: Deployment) -> None:
    """Raise PlanError for a number or a dtype that no plan can be compiled for."""
    depth = deployment.num_speculative_tokens
    if depth < 0:
        raise PlanError(f"K={depth}: the number of speculative tokens must be 0 or more")
    if depth > deployment.max_depth:
        raise PlanError(f"K={depth} is above the deployment's largest depth, {deployment.max_depth}")
    for name in ("tile", "max_num_seqs", "max_model_len", "page_size", "prefill_tile"):
        if getattr(deployment, name) < 1:
            raise PlanError(f"{name}={getattr(deployment, name)}: want at least 1")
    if deployment.dtype not in MODEL_DTYPES:
        raise PlanError(f"dtype {deployment.dtype!r} is not a model dtype" + nearest(deployment.dtype, MODEL_DTYPES))


def graph_dims(deployment: Deployment) -> dict[str, int]:
    """Return every symbol that is known before the layout is. Raises PlanError for a model symbol that
    would hide one of the graph's own."""
    dims = {
        "N": deployment.max_num_seqs,
        "K": deployment.num_speculative_tokens,
        "M": deployment.max_depth + 1,
        "L": deployment.max_model_len,
        "G": -(-deployment.max_model_len // deployment.page_size),
        "P": deployment.prefill_tile,
        "Q": deployment.sampling_words,
        "Y": deployment.max_logprobs + 1,
    }
    for symbol, value in deployment.model_dims:
        if symbol in dims or symbol in LATE:
            raise PlanError(f"model dimension {symbol!r} would hide the graph symbol of that name")
        dims[symbol] = value
    return dims


def stage_nodes(graph: Graph, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield (path, node) for every stage node, those of nested graphs too."""
    for node in graph.nodes:
        here = f"{path}.{node.name}" if path else node.name
        if node.graph is not None:
            yield from stage_nodes(node.graph, here)
        else:
            yield here, node


def _symbols(graph: Graph, path: str) -> Iterator[tuple[str, str]]:
    """Yield (symbol, where) for the top graph's inputs and all repeats; callers bind nested inputs."""
    if not path:
        for port in graph.inputs:
            yield from ((dim, f"input {port.name!r}") for dim in port.shape if isinstance(dim, str))
    for node in graph.nodes:
        here = f"{path}.{node.name}" if path else node.name
        if isinstance(node.loop, Repeat) and isinstance(node.loop.times, str):
            yield node.loop.times, f"{here}.repeat.times"
        if node.graph is not None:
            yield from _symbols(node.graph, here)


def _bind(path: str, node: Node, lookup: Lookup) -> BoundStage:
    signature = signature_of(lookup, node.stage)
    known = dict(signature.options)
    for option, _ in node.options:
        if option not in known:
            raise PlanError(f"{path}: stage {node.stage!r} has no option {option!r}" + nearest(option, known))
    given = {**known, **dict(node.options)}
    missing = [option for option, value in given.items() if value is ...]
    if missing:
        raise PlanError(f"{path}: stage {node.stage!r} needs the option {missing[0]!r}")
    options = tuple((option, _plain(value, f"{path}.{option}")) for option, value in sorted(given.items()))
    return BoundStage(path, node.stage, signature, options)


def _plain(value: Any, where: str) -> Scalar:
    """Return an option as JSON scalars and tuples of them. Raises PlanError for anything else."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(_plain(item, where) for item in value)
    raise PlanError(f"option {where} is a {type(value).__name__}: want a number, a string, a bool or a list of them")
