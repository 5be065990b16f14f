"""Text to token ids and back. Knows: tokenizer.json, whose ids two models must share. Does not know: models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from draftline.graph.errors import ConfigError, ModelError
from draftline.stages.models.core import ModelFiles
from draftline.stages.models.registry import read_shape

TOKENIZER = "tokenizer.json"


def _read(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; a model directory holds tokenizer.json")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a file that it cannot parse
        raise ModelError(f"{path}: not a tokenizer: {error}") from None


def check_same_tokens(files: ModelFiles) -> None:
    """Whether a draft model's token ids mean what the target's do. Raises ConfigError, naming both, if an id that both
    tokenizers have is another token there; where one of them has no tokenizer.json, if their vocab_size differ."""
    if files.draft_model is None or files.draft_model == files.folder:
        return
    paths = files.folder / TOKENIZER, files.draft_model / TOKENIZER
    if not all(path.is_file() for path in paths):
        sizes = [read_shape(ModelFiles(folder)).vocab_size for folder in (files.folder, files.draft_model)]
        if sizes[0] != sizes[1]:
            raise ConfigError(
                f"draft model {files.draft_model} has vocab_size={sizes[1]}, the model {files.folder} has {sizes[0]},"
                " and one of them has no tokenizer.json to compare: a draft model must share the model's tokens"
            )
        return
    if paths[0].read_bytes() == paths[1].read_bytes():
        return
    target, draft = ({i: token for token, i in _read(path).get_vocab().items()} for path in paths)
    other = sorted(i for i in target.keys() & draft.keys() if target[i] != draft[i])
    if other:
        told = f"token {other[0]} is {draft[other[0]]!r} in {paths[1]} and {target[other[0]]!r} in {paths[0]}"
        raise ConfigError(
            f"{told}: {len(other)} token ids differ; a draft model must have the tokenizer of the model that it drafts"
            " for"
        )


class Text:
    """A model's tokenizer."""

    def __init__(self, directory: Path) -> None:
        """Raises ModelError if the folder has no readable tokenizer.json."""
        self.directory, self._tokenizer = directory, _read(directory / TOKENIZER)

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
