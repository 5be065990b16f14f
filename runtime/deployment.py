"""A deployment: graph + model + sizes, checked together; its plans, compiled and bound.

Knows: every number that is fixed at start-up. Does not know: requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from draftline.compiler.cache import CacheReport, lookup_or_compile
from draftline.compiler.compile import Dump, compile_graph
from draftline.compiler.core import signature_of
from draftline.compiler.costs import DEFAULT_COSTS, CostTable
from draftline.compiler.passes.bind import stage_nodes
from draftline.compiler.plan import Kinds, Plan
from draftline.graph.core import Graph
from draftline.graph.errors import CapacityError, UsageError
from draftline.stages.caches.core import Geometry
from draftline.stages.grammar.matcher import Grammars
from draftline.stages.grammar.tokens import read_tokens
from draftline.stages.models.core import Loaded, ModelFiles, Shape
from draftline.stages.models.registry import Kernels, cache_bytes, load_model, locate, read_shape, uses_native
from draftline.stages.registry import lookup as builtin_lookup

Lookup = Callable[[str], type[Any]]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Sizes:
    """The numbers of a deployment. Rows, tokens and requests as DESIGN.md §3 has them."""

    num_speculative_tokens: int
    tile: int
    max_num_seqs: int
    max_model_len: int
    prefill_tile: int
    page_size: int
    dtype: str
    overlap: bool = False
    kernels: Kernels = "auto"
    layouts: Kinds = "bxs"
    stage_timeout: float = 60.0
    capture: str = "eager"
    adaptive: bool = False
    """Whether each step chooses its K, up to num_speculative_tokens."""
    max_num_batched_tokens: int = 512
    """Rows of a step, windows and prompts together."""
    num_pages: int = 0
    """Cache pages of all requests together; 0: as many as all slots can ever use."""
    async_scheduling: bool = True
    """Prepare a step while the one before runs, where the runtime gains by it."""
    prefix_caching: bool = False
    snapshots: int = 0
    """Rings kept for shared prefixes, where the model has rings."""

    @property
    def k_max(self) -> int:
        """The deepest plan: K, but no more drafts than the context can ever use."""
        return min(self.num_speculative_tokens, max(self.max_model_len - 2, 0))

    @property
    def pages_per_slot(self) -> int:
        return -(-self.max_model_len // self.page_size)

    def geometry(self) -> Geometry:
        """Cache sizes; unless ``num_pages`` says otherwise, every slot can be full at the same time."""
        return Geometry(
            slots=self.max_num_seqs,
            max_len=self.max_model_len,
            page_size=self.page_size,
            num_pages=self.num_pages or self.max_num_seqs * self.pages_per_slot,
            in_flight=max(self.prefill_tile, self.tile, self.k_max + 1),
            snapshots=self.snapshots if self.prefix_caching else 0,
        )


def depths(k: int, every: bool = False) -> tuple[int, ...]:
    """The depths that get a plan of their own: 0, then 2^j - 1 below K, then K; or ``every`` one. A step uses the
    smallest that covers its deepest request, so a request near its end costs at most twice the drafts it can use."""
    if every:
        return tuple(range(k + 1))
    steps = [0]
    while 2 * steps[-1] + 1 < k:
        steps.append(2 * steps[-1] + 1)
    return tuple(dict.fromkeys([*steps, k]))


def uses_drafts(graph: Graph) -> bool:
    """Whether any node of the step proposes drafts."""
    return any(node.stage.startswith("draft.") or any(p == "drafts" for p, _ in node.inputs) for node in graph.nodes)


def needs_mtp(graph: Graph) -> bool:
    """Whether the step drafts from the target's streams."""
    return any(name == "streams" for name, _ in graph.state)


def keeps_recent(graph: Graph) -> bool:
    """Whether rows of steps at K=0 are kept for the drafter until a step drafts again (see ``stages/commit.py``)."""
    return any(port == "recent_streams" for node in graph.nodes for port, _ in node.inputs)


def models_of(graph: Graph, lookup: Lookup) -> tuple[str, ...]:
    """The models that the stages of a graph use. Raises GraphError for an unknown stage."""
    uses = {model for _, node in stage_nodes(graph) for model in signature_of(lookup, node.stage).uses}
    return tuple(sorted(uses))


def check(
    graph: Graph, shape: Shape, sizes: Sizes, model: str, draft_model: str = "", lookup: Lookup = builtin_lookup
) -> None:
    """Raises UsageError where graph, models and sizes do not go together, GraphError for an unknown stage."""
    k = sizes.num_speculative_tokens
    asked = (
        f"K={k} was asked for (by --num-speculative-tokens/-K, --speculative-config, --enable-mtp or the graph's"
        " settings.num_speculative_tokens)"
    )
    if k and not uses_drafts(graph):
        raise UsageError(f"{asked}, but graph {graph.name!r} has no draft stage; use -K 0, or a graph such as mtp.yaml")
    if k and needs_mtp(graph) and not shape.num_mtp_layers:
        raise UsageError(
            f"{asked}, but model {model!r} has no MTP layer (num_nextn_predict_layers is 0 in its config.json);"
            " give an MTP head with --mtp DIR (draftline-train-mtp makes one), use -K 0, or --graph ngram.yaml"
        )
    drafts_alone = "draft_model" in models_of(graph, lookup)
    if k and drafts_alone and not draft_model:
        raise UsageError(
            f"{asked}, and graph {graph.name!r} drafts with a model of its own, but there is none: give its folder with"
            " --draft-model DIR (or settings.draft_model), use -K 0, or a graph such as mtp.yaml or ngram.yaml"
        )
    if draft_model and not drafts_alone:
        raise UsageError(
            f"a draft model is given ({draft_model!r}, by --draft-model, --speculative-config or settings.draft_model),"
            f" but graph {graph.name!r} has no stage draft.model; use --graph draft-model.yaml, or give none"
        )
    if sizes.max_model_len > shape.max_len:
        smaller = f" (the smaller of its own and that of draft model {draft_model!r})" if draft_model else ""
        raise UsageError(
            f"--max-model-len {sizes.max_model_len} is more than the model's max_position_embeddings={shape.max_len}"
            f"{smaller}"
        )
    for ratio in shape.ratios:
        if sizes.page_size % ratio:
            raise UsageError(f"page_size={sizes.page_size} must be a multiple of the model's compression ratio {ratio}")


@dataclass(frozen=True)
class Compiler:
    """Compiles the graphs of one deployment. ``cache`` None keeps no plans on disk. ``costs``: what layouts are priced
    by."""

    sizes: Sizes
    shape: Shape
    lookup: Lookup = builtin_lookup
    cache: Path | None = None
    costs: CostTable = DEFAULT_COSTS

    def plan(
        self, graph: Graph, k: int, dump: Dump | None = None, rows: int | None = None
    ) -> tuple[Plan, CacheReport | None]:
        """The plan of ``graph`` for depth ``k``; ``rows`` in place of the prefill tile. Raises GraphError and
        PlanError."""
        s = self.sizes
        numbers: dict[str, Any] = {
            "num_speculative_tokens": k,
            "tile": s.tile,
            "max_num_seqs": s.max_num_seqs,
            "max_model_len": s.max_model_len,
            "page_size": s.page_size,
            "prefill_tile": s.prefill_tile if rows is None else rows,
            "overlap": s.overlap,
            "layouts": s.layouts,
            "slot_per_row": self.shape.slot_per_row,
            "stage_timeout": s.stage_timeout,
            "capture": s.capture,
            "max_depth": s.k_max,
            "dtype": s.dtype,
            "model_dims": {"H": self.shape.num_streams, "D": self.shape.hidden_size, "V": self.shape.vocab_size},
            "lookup": self.lookup,
            "costs": self.costs,
        }
        if dump is not None:
            return compile_graph(graph, **numbers, dump=dump), None
        return lookup_or_compile(graph, directory=self.cache, **numbers)


def check_memory(files: ModelFiles, sizes: Sizes, replicas: int) -> None:
    """Raises CapacityError if this machine has less memory than the caches of ``replicas`` deployments take. Cheap, and
    before anything is compiled for sizes that nobody can serve."""
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    need = replicas * cache_bytes(files, sizes.geometry(), DTYPES[sizes.dtype])
    if need > has:
        raise CapacityError(
            f"the caches of {replicas} x {sizes.max_num_seqs} requests x {sizes.max_model_len} positions take"
            f" {need / 2**30:.1f} GiB, this machine has {has / 2**30:.1f}: they do not fit into memory; lower"
            " --max-num-seqs or --max-model-len"
        )


def load(files: ModelFiles, sizes: Sizes, uses: Collection[str] = ("target", "drafter")) -> Loaded:
    """Read the weights of the model, its MTP head and its draft model, and allocate the caches of what is used. Raises
    ModelError and CapacityError.

    Native kernels get a team of as many threads as torch has now, and torch itself one from then on: OpenMP's threads
    would only take the team's cores, and spin on them where OpenMP was loaded before ``runtime/__init__.py`` could
    tell it to sleep, by ``import torch`` (SmolLM2 on two cores: 62 tokens/s, without them 122).
    """
    try:
        model = load_model(files, sizes.geometry(), DTYPES[sizes.dtype], torch.device("cpu"), uses, sizes.kernels)
    except (RuntimeError, MemoryError) as error:  # torch's allocator raises a bare RuntimeError
        raise CapacityError(
            f"the caches of {sizes.max_num_seqs} requests x {sizes.max_model_len} positions do not fit into memory;"
            f" lower --max-num-seqs or --max-model-len ({str(error).splitlines()[0]})"
        ) from error
    if uses_native(files, sizes.kernels, model.device):
        torch.set_num_threads(1)
    shape = model.shape
    return replace(model, grammars=Grammars(lambda: read_tokens(files.folder, shape.vocab_size, shape.eos_token_ids)))


def shape(model: str, mtp: str = "") -> Shape:
    """The model's shape, without its weights. Raises ModelError."""
    return read_shape(locate(model, mtp))
