"""Which costs a deployment is planned by: assumed, stored on this machine, read from a file, or measured now.

Knows: the three words and a path of ``--costs``, what a measurement depends on. Does not know: how costs are measured
or chosen by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from draftline.compiler.compile import graph_key, versions
from draftline.compiler.costs import DEFAULT_COSTS, CostTable
from draftline.graph.core import Graph
from draftline.graph.errors import UsageError
from draftline.stages.models.core import ModelFiles

from . import calibration
from .calibration import Record
from .deployment import Sizes
from .settings import Settings
from .threads import threads_for, weight_bytes
from .workers.cores import available

STORED, ASSUMED = "stored", "assumed"
FACTS = ("dtype", "kernels", "layouts", "capture", "tile", "prefill_tile", "max_model_len")
"""Sizes that change what a call costs, beside max_num_seqs and K, which are a record's own."""


@dataclass(frozen=True)
class Costs:
    """``record``: what was measured, None where the costs are assumed. ``path``: where a measurement is stored;
    ``of``: what it is a measurement of."""

    table: CostTable = DEFAULT_COSTS
    record: Record | None = None
    path: Path | None = None
    of: dict[str, str] = field(default_factory=dict)


NO_COSTS = Costs()
"""Assumed, and nowhere to store others."""


def find(which: str, graph: Graph, files: ModelFiles, settings: Settings, sizes: Sizes) -> Costs:
    """The costs that ``which`` names: ``stored`` (assumed where none are), ``assumed``, or a file's path.

    Raises UsageError for a file that cannot be read or holds no record that is deep enough, and for adaptive depth by
    assumed costs.
    """
    of = calibration.subject(files, _facts(graph, files, settings, sizes))
    path = calibration.default_path(of)
    if which == ASSUMED:
        if sizes.adaptive:
            raise UsageError(
                "--costs assumed cannot say how long a step takes, and --num-speculative-tokens auto chooses by that;"
                " leave --costs out, or give a number of speculative tokens"
            )
        return Costs(path=path, of=of)
    found = calibration.stored(path) if which == STORED else calibration.read(Path(which))
    if found is None:
        return Costs(path=path, of=of)
    record = found.best(sizes.max_num_seqs, sizes.k_max if sizes.adaptive else 0)
    if record is not None and which == STORED and not _near(record, sizes):
        record = None
    if record is None:
        if which != STORED:
            raise UsageError(f"--costs {which}: no record reaches K={sizes.k_max}; calibrate with that K")
        return Costs(path=path, of=of)
    return Costs(record.table(), record, path, of)


def _near(record: Record, sizes: Sizes) -> bool:
    """Whether steps of a deployment cost about what was measured: slots that stand empty cost time, too."""
    return not sizes.adaptive or sizes.max_num_seqs <= record.max_num_seqs <= 2 * sizes.max_num_seqs


def _facts(graph: Graph, files: ModelFiles, settings: Settings, sizes: Sizes) -> dict[str, str]:
    threads = threads_for(settings.threads, weight_bytes(files.folder), len(available()))
    facts = {name: getattr(sizes, name) for name in FACTS}
    facts |= {"runtime": settings.runtime, "threads": threads, "graph": graph_key(graph)[:16], **versions()}
    return {name: str(value) for name, value in facts.items()}
