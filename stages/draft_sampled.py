"""Stage ``draft.mtp.sampled``: ``draft.mtp`` whose drafts are drawn where a request samples.

Knows: the law q that a draft is drawn by, and tells it. Does not know: the rule that judges the draft by it
(``sampling/choose.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftline.graph.core import Port, Signature

from .core import Call, Inputs, StageContext
from .draft_mtp import DraftMtp
from .sampling import noise
from .sampling.choose import choose
from .sampling.processors import OUT
from .sampling.sampler import narrow
from .sampling.wire import Tenants


class DraftMtpSampled(DraftMtp):
    """q is the drafter's law after the request's temperature, min-p, top-k and top-p; probs[n] is q, for stage
    ``verify.rejection``. A slot at temperature 0 gets the likeliest draft, and its probs mean nothing."""

    signature = Signature(
        inputs=(*DraftMtp.signature.inputs, Port("sampling", ("N", "Q"), "int64")),
        outputs=(*DraftMtp.signature.outputs, Port("probs", ("N", "V"), "float32")),
        uses=DraftMtp.signature.uses,
        cancel=DraftMtp.signature.cancel,
    )

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._vocab_size = context.dims["V"]
        self._tenants = Tenants()

    def _propose(self, last: Tensor, call: Call, inputs: Inputs, outputs: Mapping[str, Tensor]) -> None:
        tenants = {n: one for n, one in self._tenants.of(inputs["sampling"]).items() if not one.params.cold}
        if not tenants:
            super()._propose(last, call, inputs, outputs)
            if int(inputs["position"].max()) < 0:
                self._drafter.logits(last)  # only a rehearsal serves nobody; see stage verify
            return
        whole = self._whole(self._drafter.logits(last))
        outputs["token"].copy_(whole.argmax(1))
        mine, who = list(tenants), list(tenants.values())
        scores = narrow(whole[mine].double(), who)
        outputs["probs"][mine] = scores.dense().softmax(1).float()
        seed = torch.tensor([noise.signed(one.params.seed) for one in who])
        following = inputs["position"][mine] + 1 + call.iteration
        outputs["token"][mine] = choose(scores, seed, following, noise.DRAFT)

    def _whole(self, logits: Tensor) -> Tensor:
        """Logits [N, V'] of a draft vocabulary as [N, V]: what it lacks is never drafted."""
        ids = self._drafter.vocab
        if ids is None:
            return logits
        return logits.new_full((len(logits), self._vocab_size), OUT).index_copy_(1, ids, logits)
