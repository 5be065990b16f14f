"""Log-probabilities of chosen tokens. Knows: the target's own logits. Does not know: parameters, drafts."""

from __future__ import annotations

import torch
from torch import Tensor


def logprobs(logits: Tensor, chosen: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Of logits [R, V] float32, as the target gave them: numbers [R, 1 + top] float32, the chosen tokens' [R]
    log-probability and those of the ``top`` likeliest tokens, likeliest first; and ids [R, 1 + top] int64: the chosen
    token's rank (1: the likeliest; of equals, the best that it shares), then the likeliest tokens."""
    x = logits.double().log_softmax(1)
    own = x.gather(1, chosen[:, None])
    rank = (x > own).sum(1, keepdim=True) + 1
    values, ids = x.topk(min(top, x.shape[1]), 1)
    return torch.cat((own, values), 1).float(), torch.cat((rank, ids), 1)
