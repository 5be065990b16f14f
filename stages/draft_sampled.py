"""Stage ``draft.mtp.sampled``: ``draft.mtp`` whose drafts are drawn where a request samples.

Knows: the law q that a draft is drawn by, and tells it. Does not know: the rule that judges the draft by it
(``sampling/choose.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, StageContext
from .draft_mtp import DraftMtp
from .grammar.course import masked
from .sampling import noise
from .sampling.choose import choose
from .sampling.sampler import narrow
from .sampling.wire import Tenants


class DraftMtpSampled(DraftMtp):
    """q is the drafter's law after the request's grammar, temperature, min-p, top-k and top-p; probs[n] is q, for stage
    ``verify.rejection``. A slot at temperature 0 gets the likeliest draft, and its probs mean nothing."""

    signature = Signature(
        inputs=tuple(replace(p, optional=False) if p.name == "sampling" else p for p in DraftMtp.signature.inputs),
        outputs=(*DraftMtp.signature.outputs, Port("probs", ("N", "V"), "float32")),
        uses=DraftMtp.signature.uses,
        cancel=DraftMtp.signature.cancel,
    )

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._tenants = Tenants()

    def _propose(
        self, last: Tensor, masks: Mapping[int, Tensor], call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]
    ) -> None:
        tenants = {n: one for n, one in self._tenants.of(inputs["sampling"]).items() if not one.params.cold}
        if not tenants:
            super()._propose(last, masks, call, inputs, outputs)
            return
        whole = masked(self._whole(self._drafter.logits(last)), masks)
        outputs["token"].copy_(whole.argmax(1))
        mine, who = list(tenants), list(tenants.values())
        scores = narrow(whole[mine].double(), who)
        outputs["probs"][mine] = scores.dense().softmax(1).float()
        seed = torch.tensor([noise.signed(one.params.seed) for one in who])
        following = inputs["position"][mine] + 1 + call.iteration
        outputs["token"][mine] = choose(scores, seed, following, noise.DRAFT)
