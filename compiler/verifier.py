"""The table of named rules that the IR must keep after every pass.

Knows: which rules there are. Does not know: how a pass works. A rule says nothing about parts of the IR that
are still empty, so the whole table holds after each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from draftline.compiler import rules_plan, rules_schedule, rules_values
from draftline.compiler.core import IR
from draftline.graph.errors import PlanError


@dataclass(frozen=True)
class Rule:
    """``check`` yields a message for each place where the IR breaks the rule."""

    name: str
    check: Callable[[IR], Iterable[str]]


RULES: tuple[Rule, ...] = (
    Rule("NamesUnique", rules_values.names_unique),
    Rule("ViewsInside", rules_values.views_inside),
    Rule("OneProducer", rules_values.one_producer),
    Rule("UsedAfterProduced", rules_values.used_after_produced),
    Rule("NoAlias", rules_values.no_alias),
    Rule("ShapesAgree", rules_values.shapes_agree),
    Rule("StateStable", rules_values.state_stable),
    Rule("SymbolsBound", rules_values.symbols_bound),
    Rule("TileDivides", rules_plan.tile_divides),
    Rule("WavesCover", rules_plan.waves_cover),
    Rule("ChunksCover", rules_plan.chunks_cover),
    Rule("Placed", rules_plan.placed),
    Rule("SegmentsComplete", rules_plan.segments_complete),
    Rule("BuffersFit", rules_plan.buffers_fit),
    Rule("BuffersAligned", rules_plan.buffers_aligned),
    Rule("BuffersInside", rules_plan.buffers_inside),
    Rule("BuffersApart", rules_plan.buffers_apart),
    Rule("MetadataHolds", rules_plan.metadata_holds),
    Rule("SegmentsExist", rules_plan.segments_exist),
    Rule("WavesScheduled", rules_plan.waves_scheduled),
    Rule("ConditionsCount", rules_plan.conditions_count),
    Rule("WavesConditioned", rules_plan.waves_conditioned),
    Rule("InstructionsOrdered", rules_schedule.instructions_ordered),
    Rule("StatesWritten", rules_schedule.states_written),
    Rule("EdgesMatched", rules_schedule.edges_matched),
    Rule("HappensBefore", rules_schedule.happens_before),
)


def verify(ir: IR, after: str) -> None:
    """Raise PlanError for the first rule that the IR breaks, naming the rule and the pass that broke it.

    Later rules may rely on earlier ones, so only the first is reported.
    """
    for rule in RULES:
        found = list(rule.check(ir))
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise PlanError(
                f"graph {ir.graph.name!r} after pass {after!r} breaks rule {rule.name}: {found[0]}{more}",
                rule=rule.name,
            )
