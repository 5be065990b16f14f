"""Text to token ids and back. Knows: tokenizer.json, whose ids two models must share. Does not know: models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from draftline.graph.errors import ConfigError, ModelError
from draftline.stages.models.core import ModelFiles
from draftline.stages.models.registry import read_shape

TOKENIZER = "tokenizer.json"
LONGEST = 4
"""Bytes of the longest character in UTF-8."""


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
        self._added = frozenset(self._tokenizer.get_added_tokens_decoder())
        decoder = json.loads(self._tokenizer.to_str()).get("decoder") or {}
        self._byte_level = any(d.get("type") == "ByteLevel" for d in [decoder, *decoder.get("decoders", [])])

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids; with the special tokens that the tokenizer's own post-processor adds, unless told otherwise."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text, without special tokens unless told otherwise."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token(self, token: int) -> str | None:
        """A token as the vocabulary spells it; None for an id that it does not have."""
        return self._tokenizer.id_to_token(token)

    def is_added(self, token: int) -> bool:
        """Whether it was added to the vocabulary, such as a special token; those are spelled plainly."""
        return token in self._added

    @property
    def byte_level(self) -> bool:
        """Whether tokens are spelled in GPT-2's alphabet of bytes."""
        return self._byte_level

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        """An incremental decoder that never gives half a character."""
        return TextStream(self._tokenizer, skip_special_tokens)


class TextStream:
    """Feed ids, get the text that has become certain; ``flush`` gives the rest.

    The new tokens are decoded together with those of the last piece, whose text is cut off again: what a decoder does
    at the beginning of a text (some strip a space) is done to both. Up to three trailing U+FFFD may be the beginning of
    a character and wait; one before them cannot change any more. All pieces joined are ``decode`` of all ids, but for
    tokenizers with byte fallback where a run of byte tokens is no UTF-8: there ``decode`` takes back characters of the
    run that were whole, and pieces do not."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        added = tokenizer.get_added_tokens_decoder() if skip_special_tokens else {}
        self._special = {i for i, token in added.items() if token.special}
        self._before: list[int] = []
        self._new: list[int] = []
        self._given = 0  # characters of the new tokens' text that were given already

    def feed(self, ids: Sequence[int]) -> str:
        """The new text; a character whose bytes are not complete yet waits for the next call."""
        return "".join([self._one(token) for token in ids if token not in self._special])

    def flush(self) -> str:
        """What still waits: the incomplete end, as U+FFFD."""
        piece = self._text()[self._given :]
        self._given += len(piece)
        return piece

    def _one(self, token: int) -> str:
        self._new.append(token)
        text = self._text()
        held = min(len(text) - len(text.rstrip("\ufffd")), LONGEST - 1)
        piece = text[self._given : len(text) - held]
        self._given += len(piece)
        if text and not held:
            self._before, self._new, self._given = self._new, [], 0
        return piece

    def _text(self) -> str:
        """The text of the new tokens."""
        before, whole = self._decode(self._before), self._decode(self._before + self._new)
        return whole[len(before) :] if whole.startswith(before) else self._decode(self._new)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip) if ids else ""
