"""Lists of a JSON schema as regular expressions. Knows: leading items, the others, how many. Does not know: items."""

from __future__ import annotations

from collections.abc import Sequence

from . import pieces
from .place import At

COMMA = f"{pieces.SPACE},{pieces.SPACE}"


def array(leading: Sequence[str], rest: str | None, least: int, most: int | None, at: At) -> str:
    """All of the leading items, then others; least to most in all. ``rest`` None: no others. Raises RequestError."""
    n = len(leading)
    if most is not None and most < n:
        raise at.refuse(f"maxItems={most} is less than the {n} prefixItems, which is not served")
    if rest is None and least > n:
        raise at.refuse(f"minItems={least} is more than the {n} items that there may be")
    inside = COMMA.join(leading)
    if rest is not None:
        least, most = max(least - n, 0), None if most is None else most - n
        up_to = "" if most is None else most
        inside += f"(?:{COMMA}{rest}){{{least},{up_to}}}" if n else pieces.several(rest, least, most)
    return pieces.bracketed(r"\[", inside, r"\]")


def members(pairs: Sequence[tuple[str, bool]]) -> str:
    """An object's members in order, with commas between; those that are not required (False) may be left out."""
    first, later = "", ""
    for text, needed in reversed(pairs):
        behind = f"{COMMA}{text}"
        first = text + later if needed else pieces.either([text + later, first])
        later = (behind if needed else f"(?:{behind})?") + later
    return first
