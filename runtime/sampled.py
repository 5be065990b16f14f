"""The driver's side of sampling: what a graph can do, what a step is told of a request, what it gives back.

Knows: names of inputs and outputs, parameters, the tokenizer. Does not know: how a token is chosen, when a step runs.
All that a stage needs of a request is in the step's inputs, every time: a worker that begins anew needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftline.compiler.plan import Plan
from draftline.graph.errors import RequestError
from draftline.stages.models.core import Shape
from draftline.stages.sampling.params import GREEDY, TokenLogprobs
from draftline.stages.sampling.wire import encode

from .grammars import check_grammar
from .request import Live, Request, check
from .stopping import StopStrings
from .text import Text

SAMPLING, HISTORY, LOGPROBS, LOGPROB_IDS = "sampling", "history", "logprobs", "logprob_ids"


@dataclass(frozen=True)
class Sampled:
    """What a decode graph can be asked for. ``words``: Q, 0 without an input ``sampling``. ``everyone``: whether
    something else than the sampler reads the history, so that it is filled for every request."""

    graph: str
    words: int
    history: bool
    logprobs: bool
    everyone: bool
    shape: Shape
    max_len: int
    text: Text | None = None

    @classmethod
    def of(cls, plan: Plan, shape: Shape, text: Text | None = None) -> Sampled:
        """Of a plan of the graph, whichever K it is for."""
        inputs = {b.name: b for b in plan.buffers if b.kind == "input"}
        words = inputs[SAMPLING].shape[1] if SAMPLING in inputs else 0
        others = any(
            view is not None and view.buffer == HISTORY and SAMPLING not in dict(run.inputs)
            for segment in plan.segments
            for run in segment.runs
            for _, view in run.inputs
        )
        names = {name for name, _ in plan.outputs}
        probs = {LOGPROBS, LOGPROB_IDS} <= names
        return cls(plan.name, words, HISTORY in inputs, probs, others, shape, dict(plan.dims)["L"], text)

    def check(self, request: Request, where: str = "prompt") -> None:
        """Raises RequestError for what no request may ask, and for what this graph cannot do."""
        check(request, self.shape.vocab_size, self.max_len, where)
        p = request.sampling
        if request.stop and self.text is None:
            raise RequestError(f"{where}: stop has strings, and this engine was given no tokenizer; use stop_token_ids")
        if p.plain:
            return
        missing = SAMPLING if not self.words else HISTORY if p.looks_back and not self.history else ""
        if missing:
            raise RequestError(
                f"{where}: {_asked(request)} cannot be had: graph {self.graph!r} has no input {missing!r} for its stage"
                " verify; add it as in mtp.yaml, or ask for greedy tokens"
            )
        if p.grammar is not None:
            check_grammar(p.grammar, self.text, self.shape, where)
        if p.logprobs is not None and not self.logprobs:
            raise RequestError(
                f"{where}: logprobs cannot be had: graph {self.graph!r} has no outputs {LOGPROBS!r} and {LOGPROB_IDS!r}"
                " from its stage verify; add them as in mtp.yaml, or ask for none"
            )
        self._words(request, where)

    def admit(self, live: Live) -> None:
        """Make what the request's steps need. Raises RequestError as ``check`` does."""
        live.words = None if live.request.sampling.plain else self._words(live.request, "prompt")
        if live.request.stop and self.text is not None:
            live.stops = StopStrings(self.text.stream(), live.request.stop, live.request.sampling.min_tokens)

    def _words(self, request: Request, where: str) -> np.ndarray:
        p = request.sampling
        p = replace(p, stop_token_ids=tuple(dict.fromkeys((*p.stop_token_ids, *self.shape.eos_token_ids))))
        return encode(p, len(request.prompt), self.words, where)


def _asked(request: Request) -> str:
    """The first parameter that makes a request more than greedy."""
    p = request.sampling
    changed = [name for name, value in vars(p).items() if value != getattr(GREEDY, name)]
    drawn = [name for name in changed if name not in ("seed", "top_k", "top_p", "min_p", "stop_token_ids")]
    return (drawn or changed)[0]


def write_sampling(inputs: Mapping[str, np.ndarray], batch: Sequence[Live], everyone: bool) -> None:
    """Fill a step's sampling and history. Rows of those who need neither keep what they had: nobody looks at them."""
    words, history = inputs.get(SAMPLING), inputs.get(HISTORY)
    if words is not None:
        words[:, 0] = -1
    if history is not None and everyone:
        history.fill(-1)
    for live in batch:
        n = live.slot.index
        if words is not None and live.words is not None:
            words[n, : len(live.words)] = live.words
            words[n, 0] = live.slot.generation  # no two tenants of a slot have the same
        if history is not None and (everyone or live.request.sampling.looks_back):
            history[n, : len(live.tokens)] = live.tokens


def read_logprobs(live: Live, out: Mapping[str, np.ndarray], kept: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """Of the tokens that a step gave a request, if it asked."""
    top = live.request.sampling.logprobs
    if top is None:
        return ()
    numbers, ids = (out[name][live.slot.index, : len(kept), : 1 + top].tolist() for name in (LOGPROBS, LOGPROB_IDS))
    return tuple(
        TokenLogprobs(token, values[0], places[0], tuple(zip(places[1:], values[1:], strict=True)))
        for token, values, places in zip(kept, numbers, ids, strict=True)
    )
