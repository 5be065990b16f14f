"""A slot's sampling parameters as int64 words, and back: how they travel from the driver to a stage.

Knows: the words' order. Does not know: what the parameters mean, who writes them when.

A row of input ``sampling`` [N, Q]: word 0 the tenant (a number that no other request in this slot has; -1: greedy, and
nothing else in the row counts), word 1 the prompt's length in tokens, word 2 the length of what follows in bytes, then
the SamplingParams as msgpack. A stage reads a row once per tenant.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from draftline.graph.errors import RequestError

from .params import SamplingParams

HEADER = 3
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SamplingParams)


def encode(params: SamplingParams, prompt: int, most: int, where: str) -> np.ndarray:
    """The words of a row, [3 + n] int64, without the tenant (0 in its place). ``most``: Q. Raises RequestError."""
    payload = _encoder.encode(params)
    words = HEADER + -(-len(payload) // 8)
    if words > most:
        raise RequestError(
            f"{where}: its sampling parameters take {len(payload)} bytes, at most {8 * (most - HEADER)} can be given to"
            " a step; shorten logit_bias, bad_words or stop_token_ids"
        )
    row = np.zeros(words, dtype=np.int64)
    row[1], row[2] = prompt, len(payload)
    row[HEADER:].view(np.uint8)[: len(payload)] = np.frombuffer(payload, dtype=np.uint8)
    return row


@dataclass(frozen=True)
class Tenant:
    """A row, read. ``prompt``: tokens. Tensors made once: ``biased``, (ids, values) of logit_bias; ``ends``, the ids
    that min_tokens forbids; ``words``, (last tokens [B], those before [B, m], -1 to the left) of the bad words."""

    uid: int
    params: SamplingParams
    prompt: int
    biased: tuple[Tensor, Tensor]
    ends: Tensor
    words: tuple[Tensor, Tensor]


def decode(row: np.ndarray) -> Tenant:
    """A row [Q] int64 of a slot that samples."""
    params = _decoder.decode(row[HEADER:].tobytes()[: int(row[2])])
    return tenant(int(row[0]), params, int(row[1]))


def tenant(uid: int, params: SamplingParams, prompt: int) -> Tenant:
    """As ``decode``, of parameters that did not travel."""
    ids = torch.tensor([i for i, _ in params.logit_bias], dtype=torch.int64)
    values = torch.tensor([v for _, v in params.logit_bias], dtype=torch.float64)
    longest = max((len(word) for word in params.bad_words), default=1)
    before = [[-1] * (longest - len(w)) + list(w[:-1]) for w in params.bad_words]
    last = torch.tensor([w[-1] for w in params.bad_words], dtype=torch.int64)
    words = last, torch.tensor(before, dtype=torch.int64).view(len(last), longest - 1)
    return Tenant(uid, params, prompt, (ids, values), torch.tensor(params.stop_token_ids, dtype=torch.int64), words)


class Tenants:
    """Whom a stage knows: rows are read when a slot's tenant changes."""

    def __init__(self) -> None:
        self._known: dict[int, Tenant] = {}

    def of(self, sampling: Tensor | None) -> dict[int, Tenant]:
        """Slots of ``sampling`` [N, Q] that are not greedy. It looks at the words on the host, where they come from: a
        device of its own would keep the tenant words in host memory for this."""
        if sampling is None:
            return {}
        rows = sampling.numpy()
        found = np.flatnonzero(rows[:, 0] >= 0)
        return {int(n): self._tenant(int(n), rows[n]) for n in found} if len(found) else {}

    def _tenant(self, n: int, row: np.ndarray) -> Tenant:
        known = self._known.get(n)
        if known is None or known.uid != row[0]:
            known = self._known[n] = decode(row)
        return known
