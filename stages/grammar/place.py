"""A place in a JSON schema, and what may be refused there. Knows: JSON pointers. Does not know: what is served."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from draftline.graph.errors import RequestError

Said = Mapping[str, Any]
"""A schema's keywords without its notes."""


@dataclass(frozen=True)
class At:
    """In ``root``, at the JSON pointer ``path``, within the references ``refs``."""

    root: Any
    path: str = "#"
    refs: tuple[str, ...] = ()

    def of(self, *keys: object) -> At:
        return replace(self, path="/".join((self.path, *map(str, keys))))

    def within(self, name: str) -> At:
        """Inside a reference."""
        return replace(self, refs=(*self.refs, name))

    def refuse(self, what: str) -> RequestError:
        return RequestError(f"{what} at {self.path}")

    def target(self, name: Any) -> Any:
        """What a reference points at. Raises RequestError."""
        if not isinstance(name, str) or not (name == "#" or name.startswith("#/")):
            raise self.refuse(f"$ref {name!r} is not served: it must point into the schema itself, as #/$defs/NAME")
        found = self.root
        for part in name.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(part)] if isinstance(found, list) else found[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise self.refuse(f"$ref {name!r} points at nothing") from None
        return found


def only(said: Said, known: Collection[str], at: At) -> None:
    """Raises RequestError for a keyword that says something that would not be kept."""
    for key in said:
        if key not in known:
            beside = ", ".join(sorted(known)) or "nothing"
            raise at.refuse(f"keyword {key!r} is not served (here are: {beside})")


def limits(said: Said, kind: str, at: At) -> tuple[int, int | None]:
    """min and max of a kind such as Length; None: no limit."""
    least, most = (_count(said, f"{end}{kind}", at) for end in ("min", "max"))
    if least is not None and most is not None and most < least:
        raise at.refuse(f"min{kind}={least} is more than max{kind}={most}")
    return least or 0, most


def _count(said: Said, key: str, at: At) -> int | None:
    value = said.get(key)
    if key in said and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise at.refuse(f"{key} is {json.dumps(value)}; an integer of 0 or more is wanted")
    return value
