"""layout: choose the layout of the chunk loop, by price.

Knows: which stages run per wave, per chunk and once. Does not know: how a layout is priced, chunks' views.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from draftline.compiler.core import IR, Loop
from draftline.compiler.layouts import Packing, Requests, Tokens, Workload, choose, waves
from draftline.compiler.passes.place import devices_of
from draftline.compiler.plan import LayoutChoice
from draftline.graph.core import Graph, Node
from draftline.stages.core import Layout


@dataclass(frozen=True)
class ChooseLayout:
    """Fills ``layout``. A graph without a chunk loop (a prefill call) gets one request of
    P rows per call, and no chunks. Raises PlanError if no layout can be used."""

    name: str = "layout"

    def run(self, ir: IR) -> IR:
        deployment = ir.deployment
        loops = [item for item in ir.items if isinstance(item, Loop)]
        if loops:
            choice = choose(
                Tokens(deployment.tile),
                Tokens(deployment.num_speculative_tokens),
                Requests(deployment.max_num_seqs),
                ir.costs,
                self._workload(ir, loops),
                deployment.layouts,
                self._packing(ir, loops),
            )
        else:
            single = Layout(1, deployment.prefill_tile)
            fixed = sum(ir.costs.micros(op.stage, deployment.prefill_tile) for op in ir.ops)
            choice = LayoutChoice(single, (), waves(Requests(deployment.max_num_seqs), single), fixed)
        return replace(ir, layout=choice)

    def _packing(self, ir: IR, loops: list[Loop]) -> Packing:
        deployment = ir.deployment
        inside = {stage for loop in loops for stage in _stages(loop.path, loop.node)}
        waved = [stage for stage in ir.stages if stage.node in inside and stage.signature.per_wave]
        return Packing(
            slot_per_row=deployment.slot_per_row,
            whole=tuple(stage.stage for stage in waved if not stage.signature.packs),
            # Who wants packed layouts only has no use for overlap; where others compete, they keep it.
            overlap=deployment.overlap and deployment.layouts == "any",
        )

    def _workload(self, ir: IR, loops: list[Loop]) -> Workload:
        inside = [stage for loop in loops for stage in _stages(loop.path, loop.node)]
        per_wave = {stage.node for stage in ir.stages if stage.signature.per_wave}
        names = {stage.node: stage.stage for stage in ir.stages}
        devices = devices_of(ir)
        # A chunk comes back to where it began, so the last stage is the first one's neighbour.
        around = zip(inside, [*inside[1:], *inside[:1]], strict=True)
        return Workload(
            hops=sum(devices[a] != devices[b] for a, b in around),
            wave_stages=tuple(names[path] for path in inside if path in per_wave),
            chunk_stages=tuple(names[path] for path in inside if path not in per_wave),
            fixed=sum(ir.costs.micros(op.stage, ir.deployment.max_num_seqs) for op in ir.ops),
        )


def _stages(path: str, node: Node) -> Iterator[str]:
    """Yield the paths of all stage nodes in and under ``node``."""
    graph: Graph | None = node.graph
    if graph is None:
        yield path
        return
    for inner in graph.nodes:
        yield from _stages(f"{path}.{inner.name}", inner)
