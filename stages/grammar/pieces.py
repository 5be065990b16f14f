"""Regular expressions of JSON's parts, in the syntax of Rust's regex crate. Knows: RFC 8259. Does not know: schemas.

Between tokens there may be one space, as in outlines-core; a model that may write more writes spaces for ever.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from draftline.graph.errors import RequestError

SPACE = " ?"
CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F\x{10FFFF}]|\\["\\/bfnrt])'
"""Of a string. Without \\u escapes, which could spell half a surrogate pair."""
STRING = f'"{CHARACTER}*"'
INTEGER = "(?:0|-?[1-9][0-9]*)"
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?"
BOOLEAN = "(?:true|false)"
SCALAR = f"(?:{STRING}|{NUMBER}|{BOOLEAN}|null)"
OBJECT_DEPTH, VALUE_DEPTH = 4, 2
"""How deep an object of which nothing is known is nested at most, and a value within a schema that says nothing of it.
The automaton grows fourfold with each."""

_META = frozenset(r"\.+*?()|[]{}^$#&-~")

_DAY = "0[1-9]|[12][0-9]"
_MONTHS = f"(?:(?:0[13578]|1[02])-(?:{_DAY}|3[01])|(?:0[469]|11)-(?:{_DAY}|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"[1-9][0-9]{{3}}-{_MONTHS}"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL})*\.[a-z]{{2,}}",
    "uri": rf"[a-z][a-z0-9+.-]{{0,15}}://{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*",
}
"""Each is a part of what the format allows, without a quote, a backslash or anything else that JSON escapes."""


def escape(text: str) -> str:
    """The expression that matches just the text."""
    return "".join("\\" + c if c in _META else c for c in text)


def literal(value: Any) -> str:
    """A JSON value, written the usual way. Raises RequestError for NaN and infinity."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        raise RequestError(f"{value!r} is no value of JSON") from None
    return escape(text)


def either(alternatives: Sequence[str]) -> str:
    return f"(?:{'|'.join(alternatives)})"


def pair(key: str, value: str) -> str:
    """One member of an object; ``key``: its expression."""
    return f"{key}{SPACE}:{SPACE}{value}"


def several(item: str, least: int = 0, most: int | None = None) -> str:
    """From least to most items with commas between."""
    if most == 0:
        return ""
    rest = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    text = f"{item}(?:{SPACE},{SPACE}{item}){rest}"
    return f"(?:{text})?" if least == 0 else text


def bracketed(opening: str, inside: str, closing: str) -> str:
    return f"{opening}{SPACE}(?:{inside}){SPACE}{closing}"


def any_value(depth: int = VALUE_DEPTH) -> str:
    if depth == 0:
        return SCALAR
    return either([SCALAR, any_object(depth), any_array(depth)])


def any_object(depth: int = OBJECT_DEPTH) -> str:
    """An object whose values are nested depth - 1 deep at most."""
    return bracketed(r"\{", several(pair(STRING, any_value(depth - 1))), r"\}")


def any_array(depth: int = VALUE_DEPTH) -> str:
    return bracketed(r"\[", several(any_value(depth - 1)), r"\]")
