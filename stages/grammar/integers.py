"""Ranges of integers as regular expressions: digit by digit. Knows: decimal numbers. Does not know: schemas."""

from __future__ import annotations

from . import pieces


def between(least: int | None, most: int | None) -> str:
    """The integers from least to most, each written once: no leading zeros, no -0. None: no limit."""
    parts: list[str] = []
    if least is None or least < 0:
        up = None if least is None else -least
        parts += [f"-{part}" for part in _positive(1 if most is None or most >= 0 else -most, up)]
    if (least is None or least <= 0) and (most is None or most >= 0):
        parts.append("0")
    if most is None or most > 0:
        parts += _positive(1 if least is None else max(least, 1), most)
    return pieces.either(parts)


def _positive(a: int, b: int | None) -> list[str]:
    """a ≥ 1 to b, a length at a time."""
    parts: list[str] = []
    width = len(str(a))
    while b is None or width <= len(str(b)):
        low, high = max(a, 10 ** (width - 1)), 10**width - 1
        if b is None and low == 10 ** (width - 1):
            return [*parts, f"[1-9][0-9]{{{width - 1},}}"]
        parts.append(_same_length(str(low), str(high if b is None else min(b, high))))
        width += 1
    return parts


def _same_length(a: str, b: str) -> str:
    """Numbers of as many digits as both, from a to b."""
    n = len(a)
    if n == 0:
        return ""
    if a[1:] == "0" * (n - 1) and b[1:] == "9" * (n - 1):
        return _digits(a[0], b[0]) + (f"[0-9]{{{n - 1}}}" if n > 1 else "")
    if a[0] == b[0]:
        return a[0] + _same_length(a[1:], b[1:])
    parts = [a[0] + _same_length(a[1:], "9" * (n - 1))]
    if int(b[0]) - int(a[0]) > 1:
        parts.append(_digits(chr(ord(a[0]) + 1), chr(ord(b[0]) - 1)) + f"[0-9]{{{n - 1}}}")
    parts.append(b[0] + _same_length("0" * (n - 1), b[1:]))
    return pieces.either(parts)


def _digits(a: str, b: str) -> str:
    return a if a == b else f"[{a}-{b}]"
