"""Strings and numbers of a JSON schema as regular expressions. Knows: their keywords. Does not know: objects, lists."""

from __future__ import annotations

import json

from draftline.graph.errors import RequestError

from . import pieces
from .automaton import compile_regex, unanchored, within
from .integers import between
from .place import At, Said, limits

BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def string(said: Said, at: At) -> str:
    least, most = limits(said, "Length", at)
    own = [key for key in ("pattern", "format") if key in said]
    if not own:
        return f'"{pieces.CHARACTER}{{{least},{"" if most is None else most}}}"'
    if len(own) > 1 or least or most is not None:
        raise at.refuse(f"{own[0]} together with another keyword of strings is not served")
    text = said[own[0]]
    if not isinstance(text, str):
        raise at.refuse(f"{own[0]} is {json.dumps(text)[:40]}; a string is wanted")
    if own == ["pattern"]:
        return f'"(?:{_pattern(text, at)})"'
    if text not in pieces.FORMATS:
        raise at.refuse(f"format {text!r} is not served (these are: {', '.join(pieces.FORMATS)})")
    return f'"{pieces.FORMATS[text]}"'


def _pattern(pattern: str, at: At) -> str:
    """A pattern that may match anywhere matches where it is the whole text, too."""
    try:
        inner = compile_regex(pattern)
    except RequestError as error:
        raise at.refuse(f"pattern: {error}") from None
    if not within(inner, compile_regex(f"{pieces.CHARACTER}*")):
        raise at.refuse(
            f"pattern {pattern!r} matches text with a quote, a backslash or a control character, which JSON escapes;"
            r' leave them out, as in [^"\\\x00-\x1F\x7F-\x9F],'
        )
    return unanchored(pattern)


def integer(said: Said, at: At) -> str:
    least, most = (_bound(said, *one, at) for one in ((BOUNDS[:2], 1), (BOUNDS[2:], -1)))
    if least is not None and most is not None and least > most:
        raise at.refuse(f"no integer is from {least} to {most}")
    return between(least, most)


def _bound(said: Said, names: tuple[str, ...], inwards: int, at: At) -> int | None:
    """The tighter one of a limit and an exclusive limit; ``inwards``: the step from one to the other."""
    found = []
    for name, step in zip(names, (0, inwards), strict=True):
        if name in said:
            value = said[name]
            if isinstance(value, bool) or not isinstance(value, int):
                raise at.refuse(f"{name} is {json.dumps(value)}; an integer is wanted")
            found.append(value + step)
    return (max if inwards > 0 else min)(found) if found else None


def number(said: Said, at: At) -> str:
    for name in BOUNDS:
        if name in said and (name != "minimum" or isinstance(said[name], bool) or said[name] != 0):
            raise at.refuse(f"{name} {json.dumps(said[name])} of numbers is not served, only a minimum of 0")
    return pieces.NUMBER.removeprefix("-?") if "minimum" in said else pieces.NUMBER
