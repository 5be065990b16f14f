"""Text to token ids and back. Knows: tokenizer.json. Does not know: models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from draftline.graph.errors import ModelError


class Text:
    """A model's tokenizer."""

    def __init__(self, directory: Path) -> None:
        """Raises ModelError if the folder has no readable tokenizer.json."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{path}: no such file; a model directory holds tokenizer.json")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a file that it cannot parse
            raise ModelError(f"{path}: not a tokenizer: {error}") from None

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids, with the special tokens that the tokenizer's own post-processor adds."""
        return tuple(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def stream(self) -> TextStream:
        """An incremental decoder that never gives half a character."""
        return TextStream(self._tokenizer)


class TextStream:
    """Feed ids, get the text that has become certain."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)

    def feed(self, ids: Sequence[int]) -> str:
        """The new text; a character whose bytes are not complete yet waits for the next call."""
        parts = (self._stream.step(self._tokenizer, i) for i in ids)
        return "".join(p for p in parts if p)
