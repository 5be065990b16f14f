"""A decode step before it runs: how deep, by which plan, with which metadata; also while the one before still runs.

Knows: depth per request, reservation, the plan that covers a batch. Does not know: results, failures, who waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .adaptive import Policy
from .catch_up import CatchUp
from .metadata import write_step
from .request import Live
from .running import Bound, Pending
from .scheduler import Scheduler
from .slots import Slot


@dataclass(frozen=True)
class Step:
    """A step under way: the slots that its requests had when it was prepared, and the most drafts of each slot."""

    bound: Bound
    batch: tuple[tuple[Live, Slot], ...]
    caps: Mapping[int, int]
    began: int
    pending: Pending

    @property
    def holders(self) -> list[Live]:
        """Requests that are still where they were. What comes of the others is dropped: they ended, or were cancelled
        or preempted, since the step was prepared."""
        return [live for live, slot in self.batch if live.slot is slot]


class Stepping:
    """``decode``: the bound plans by depth. ``everyone``: whether all need the history."""

    def __init__(
        self,
        decode: Mapping[int, Bound],
        scheduler: Scheduler,
        catch_up: CatchUp,
        policy: Policy | None,
        everyone: bool,
    ) -> None:
        self._decode, self._scheduler, self._catch_up = decode, scheduler, catch_up
        self._policy, self._everyone = policy, everyone
        self._sizes, self._k_max = scheduler.sizes, scheduler.sizes.k_max

    def wanted(self, live: Live) -> int:
        """Tokens that the request may still get: its own limit, and the context's."""
        return min(live.request.max_new_tokens - live.made, self._sizes.max_model_len - len(live.tokens))

    def asked(self, live: Live) -> int:
        """The most drafts that the request wants of any step."""
        k = live.request.num_speculative_tokens
        return self._k_max if k is None else min(k, self._k_max)

    def depth(self, live: Live) -> int:
        """K_eff: drafts that this request can still use, 0 … K (DESIGN §4.6)."""
        return max(0, min(self.asked(live), self.wanted(live) - 1)) if self._catch_up.can_draft(live) else 0

    def window(self, live: Live) -> int:
        """Positions that the next step may write, all of them reserved before it starts (DESIGN §4.6)."""
        return len(live.tokens) + self.depth(live)

    def prepare(self, batch: Sequence[Live]) -> tuple[Bound, dict[int, int]]:
        """The plan that covers the batch, with its metadata filled, and the depth of each slot."""
        depth = {live.slot.index: self.depth(live) for live in batch}
        k = max(depth.values())
        if self._policy is not None:
            # Rows that no drafter has seen wait in M places; before those are all taken, some step must draft.
            full = any(depth[live.slot.index] and live.num_recent > self._k_max for live in batch)
            k = self._policy.choose([(live.evidence, depth[live.slot.index]) for live in batch], least=int(full))
            depth = {n: min(d, k) for n, d in depth.items()}
        return self._filled(batch, depth, k), depth

    def _filled(self, batch: Sequence[Live], depth: dict[int, int], k: int) -> Bound:
        bound = self._decode[min(known for known in self._decode if known >= k)]
        bound.plan.covers(len(batch), k)
        write_step(bound.inputs, batch, depth, self._scheduler.table, self._everyone)
        bound.lines.fill(-1)
        return bound

    def prepare_ahead(self, step: Step) -> tuple[Bound, dict[int, int]] | None:
        """The step that follows ``step``, which has not ended: as ``prepare``, with the most drafts that each slot may
        come to. None where what follows depends on more than the tokens that it commits: adaptive depth, caches to be
        filled, somebody to be admitted, preempted or dropped."""
        s, holders = self._scheduler, step.holders
        if self._policy is not None or not holders or len(holders) < len(s.live) or s.admits(self._k_max):
            return None
        drafted, depth = step.bound.plan.num_speculative_tokens > 0, self.drafts(step)
        caps: dict[int, int] = {}
        rules: dict[int, int] = {}
        for live in holders:
            n = live.slot.index
            cap = max(0, min(self.asked(live), self.wanted(live) - 2))
            rule = self._catch_up.rule(depth[n] if drafted else None, cap)
            if live.cancelled or rule is None:
                return None
            caps[n], rules[n] = cap, rule
        if max(self.wanted(live) for live in holders) < 2 or not self._reserved(step, caps):
            return None
        bound = self._filled(holders, caps, max(caps.values()))
        for live in holders:
            n = live.slot.index
            bound.lines[n] = caps[n], self.wanted(live), rules[n], depth[n]
        return bound, caps

    def _reserved(self, step: Step, caps: Mapping[int, int]) -> bool:
        """Pages for the windows of both steps, if that preempts nobody."""
        s, pages = self._scheduler, self._scheduler.pages
        most = self._sizes.max_model_len
        ends = {n: min(len(live.tokens) + step.caps[n] + 1 + caps[n], most) for n, live in s.live.items()}
        if sum(pages.missing(n, end) for n, end in ends.items()) > pages.num_free:
            return False
        s.reserve(step.holders, lambda live: ends[live.slot.index])
        return True

    def drafts(self, step: Step) -> dict[int, int]:
        """How many drafts each slot that is still held had, now that its request's tokens before the step are known."""
        return {live.slot.index: min(step.caps[live.slot.index], self.depth(live)) for live in step.holders}
