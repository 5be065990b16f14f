"""The bytes that each token stands for, from a model's tokenizer.json.

Knows: byte-level vocabularies (GPT-2's alphabet) and SentencePiece's (``▁``, ``<0x0A>``). Does not know: merges, text
to tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftline.graph.errors import ModelError


@dataclass(frozen=True, eq=False)
class Tokens:
    """``text``: of every token that stands for some, its bytes. ``ends``: the end-of-sequence tokens. ``ids`` [T]:
    those of ``text``, longest first; ``columns[i]``: byte i of those that have it, which are the first so many."""

    vocab_size: int
    text: Mapping[int, bytes]
    ends: tuple[int, ...]
    ids: np.ndarray
    columns: tuple[np.ndarray, ...]


def tokens_of(text: Mapping[int, bytes], vocab_size: int, ends: Sequence[int]) -> Tokens:
    """Of ids from 0 to vocab_size - 1. Raises ModelError for a vocabulary that some text cannot be written in, or that
    has no end."""
    kept = {i: b for i, b in text.items() if b and 0 <= i < vocab_size and i not in ends}
    if not ends:
        raise ModelError("the model has no end-of-sequence token (eos_token_id in its config.json)")
    single = {b for b in kept.values() if len(b) == 1}
    # 0xC0, 0xC1 and 0xF5 … 0xFF are in no UTF-8 text.
    lacks = [b for b in (*range(0xC0), *range(0xC2, 0xF5)) if bytes([b]) not in single]
    if lacks:
        raise ModelError(f"the tokenizer has no token for byte 0x{lacks[0]:02X} alone, so some texts cannot be written")
    ids = sorted(kept, key=lambda i: (-len(kept[i]), i))
    columns = []
    for n in range(len(kept[ids[0]])):
        columns.append(np.array([kept[i][n] for i in ids if len(kept[i]) > n], dtype=np.intp))
    return Tokens(vocab_size, kept, tuple(ends), np.array(ids), tuple(columns))


def read_tokens(folder: Path, vocab_size: int, ends: Sequence[int]) -> Tokens:
    """Of the model in a folder. Special tokens stand for no text. Raises ModelError."""
    path = folder / "tokenizer.json"
    try:
        found: Any = json.loads(path.read_text("utf-8"))
        vocab, added, decoder = found["model"]["vocab"], found.get("added_tokens") or [], _types(found.get("decoder"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: not a tokenizer: {error}") from None
    pairs = vocab.items() if isinstance(vocab, dict) else ((piece[0], i) for i, piece in enumerate(vocab))
    if "ByteLevel" in decoder:
        text = {i: b for piece, i in pairs if (b := _byte_level(piece)) is not None}
    elif decoder & {"ByteFallback", "Metaspace"}:
        text = {i: _sentence_piece(piece) for piece, i in pairs}
    else:
        raise ModelError(f"{path}: its decoder is {sorted(decoder)}; ByteLevel, ByteFallback and Metaspace are served")
    for one in added:
        text[one["id"]] = b"" if one.get("special") else one["content"].encode()
    try:
        return tokens_of(text, vocab_size, ends)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _types(decoder: Any) -> set[str]:
    """Names of a decoder and of the decoders in it."""
    if not decoder:
        return set()
    return {decoder["type"]}.union(*(_types(one) for one in decoder.get("decoders", ())))


def _alphabet() -> dict[str, int]:
    """GPT-2's (Radford et al. 2019, encoder.py): printable bytes stand for themselves, the others, in order, for the
    characters from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(0x100 + n): b for n, b in enumerate(others)}


_ALPHABET = _alphabet()


def _byte_level(piece: str) -> bytes | None:
    try:
        return bytes(_ALPHABET[c] for c in piece)
    except KeyError:
        return None  # no text is written with it


def _sentence_piece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()
