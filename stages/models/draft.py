"""A language model that drafts for another one. Knows: vocabularies of two sizes. Does not know: tokenizers, stages."""

from __future__ import annotations

from torch import Tensor

from .core import Rows, Target


def within(model: Target, vocab_size: int) -> Target:
    """The model, held to tokens below ``vocab_size``: output matrices are padded to sizes that suit a machine, so a
    draft model may know ids that its target has no row for."""
    return model if model.vocab_size <= vocab_size else _Within(model, vocab_size)


class _Within:
    """See ``within``."""

    def __init__(self, model: Target, vocab_size: int) -> None:
        self._model, self.vocab_size = model, vocab_size
        self.num_streams, self.hidden_size, self.rings = model.num_streams, model.hidden_size, model.rings

    def forward(self, rows: Rows) -> Tensor:
        """As the model's own."""
        return self._model.forward(rows)

    def logits(self, streams: Tensor) -> Tensor:
        """Streams [R, H, D] to float32 logits [R, vocab_size]."""
        return self._model.logits(streams)[:, : self.vocab_size]

    def greedy(self, streams: Tensor) -> Tensor:
        """Streams [R, H, D] to the likeliest token below vocab_size of each row [R]."""
        return self.logits(streams).argmax(-1)
