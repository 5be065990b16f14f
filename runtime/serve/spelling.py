"""Single tokens as text and as bytes, for log-probabilities.

Knows: byte-level alphabets, byte fallback. Does not know: requests. A token may hold part of a character: its text is
then ``bytes:\\xe2\\x82``, as OpenAI writes it, and its bytes say exactly what it holds.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ..text import Text

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level tokenizers (GPT-2's table: printable bytes stand for themselves, the others follow
    from U+0100 on)."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(own)]
    return {**{chr(b): b for b in own}, **{chr(256 + i): b for i, b in enumerate(rest)}}


class Spelling:
    """Of one tokenizer's tokens."""

    def __init__(self, text: Text) -> None:
        self._text, self._alphabet = text, byte_alphabet() if text.byte_level else {}
        self.text = lru_cache(maxsize=65536)(self._spell)

    def bytes(self, token: int) -> bytes:
        """What the token holds; empty for an id that the tokenizer does not have."""
        name = self._text.token(token) or ""
        found = _BYTE.fullmatch(name)
        if found is not None:
            return bytes([int(found[1], 16)])
        if self._alphabet and not self._text.is_added(token) and all(c in self._alphabet for c in name):
            return bytes(self._alphabet[c] for c in name)
        return self._text.decode((token,), skip_special_tokens=False).encode()

    def _spell(self, token: int) -> str:
        raw = self.bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{b:02x}" for b in raw)
