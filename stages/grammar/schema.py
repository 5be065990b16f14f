"""A JSON schema as a regular expression of texts that it accepts: never of one that it does not.

Knows: what a regular expression can hold of JSON Schema (draft 2020-12). Does not know: automata's sizes, tokens.

Properties come in the schema's order and none that it does not name, which any ``additionalProperties`` accepts. What
is not served is refused by name and place, not ignored: outlines-core's own translation (0.2.14) ignores
``minimum`` and ``uniqueItems``, drops ``null`` from ``["object", "null"]`` and writes a key's quotes unescaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from . import pieces
from .arrays import array, members
from .leaves import BOUNDS, integer, number, string
from .place import At, Said, limits, only

NOTES = frozenset(("title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs"))
NOTES |= {"definitions", "deprecated", "readOnly", "writeOnly"}
KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties", "minProperties", "maxProperties")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "integer": frozenset(BOUNDS),
    "number": frozenset(("minimum",)),
    "boolean": frozenset(),
    "null": frozenset(),
}
_DEEPEST = 32


def schema_regex(schema: Any) -> str:
    """Raises RequestError naming what is wrong or not served, and where."""
    return _any(schema, At(schema))


def _any(schema: Any, at: At) -> str:
    if at.path.count("/") > _DEEPEST:
        raise at.refuse(f"the schema is nested more than {_DEEPEST} deep")
    if schema is True or schema == {}:
        return pieces.any_value()
    if not isinstance(schema, dict):
        raise at.refuse(f"{json.dumps(schema)[:40]} is no schema that a text could match")
    said = {key: value for key, value in schema.items() if key not in NOTES}
    if not said:
        return pieces.any_value()
    for key, of in (("$ref", _ref), ("allOf", _all_of), ("anyOf", _any_of), ("oneOf", _one_of)):
        if key in said:
            only(said, {key}, at)
            return of(said[key], at)
    kinds = _kinds(said, at)
    if "enum" in said or "const" in said:
        only(said, {"enum", "const", "type"}, at)
        return _values(said, kinds, at)
    known = frozenset({"type"}).union(*(KEYWORDS[kind] for kind in kinds))
    only(said, known, at)
    return pieces.either([_KINDS[kind](said, at) for kind in kinds])


def _kinds(said: Mapping[str, Any], at: At) -> list[str]:
    """The types of a schema; those that its keywords are about, where it names none."""
    kinds = said.get("type")
    if kinds is None:
        kinds = [kind for kind in KEYWORDS if KEYWORDS[kind] & said.keys() and kind != "number"] or list(KEYWORDS)
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not kinds:
        raise at.refuse(f"type is {json.dumps(kinds)}; a type or a list of types is wanted")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in KEYWORDS:
            raise at.refuse(f"type {json.dumps(kind)} is unknown; known: {', '.join(KEYWORDS)}")
    return kinds


# -- combinations --------------------------------------------------------------------------------------------


def _ref(name: Any, at: At) -> str:
    if name in at.refs:
        raise at.refuse(f"$ref {name!r} is recursive, which is not served: a text of any depth is no regular language")
    return _any(at.target(name), at.within(name))


def _listed(schemas: Any, at: At) -> list[Any]:
    if not isinstance(schemas, list) or not schemas:
        raise at.refuse("a list of schemas is wanted")
    return schemas


def _all_of(schemas: Any, at: At) -> str:
    if len(_listed(schemas, at.of("allOf"))) > 1:
        raise at.refuse("allOf of more than one schema is not served")
    return _any(schemas[0], at.of("allOf", 0))


def _any_of(schemas: Any, at: At) -> str:
    listed = _listed(schemas, at.of("anyOf"))
    return pieces.either([_any(one, at.of("anyOf", i)) for i, one in enumerate(listed)])


def _one_of(schemas: Any, at: At) -> str:
    """As anyOf, where no text can match two."""
    listed = _listed(schemas, at.of("oneOf"))
    alternatives = [_any(one, at.of("oneOf", i)) for i, one in enumerate(listed)]  # each is well formed
    for i, one in enumerate(listed):
        for j in range(i):
            if not _apart(_resolved(one, at), _resolved(listed[j], at), at):
                raise at.of("oneOf").refuse(f"schemas {j} and {i} may match the same text (anyOf may be meant)")
    return pieces.either(alternatives)


def _resolved(schema: Any, at: At) -> Any:
    for _ in range(_DEEPEST):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = at.target(schema["$ref"])
    return schema


def _apart(a: Any, b: Any, at: At) -> bool:
    """Whether two schemas differ in type, in their values, or in such a property that both require."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return False
    values, others = _choices(a), _choices(b)
    if values and others and not any(v == w for v in values for w in others):
        return True
    if all(isinstance(one.get("type"), str) for one in (a, b)) and a["type"] != b["type"]:
        return {a["type"], b["type"]} != {"integer", "number"}
    for key in set(a.get("required", ())) & set(b.get("required", ())):
        mine, other = (_resolved(one.get("properties", {}).get(key), at) for one in (a, b))
        if _apart(mine, other, at):
            return True
    return False


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _values(said: Mapping[str, Any], kinds: list[str], at: At) -> str:
    if not isinstance(said.get("enum", []), list):
        raise at.refuse("enum must be a list of values")
    values = _choices(said)
    if "const" in said and "enum" in said:
        raise at.refuse("const and enum together are not served")
    if "type" in said:
        values = [v for v in values if any(_is(v, kind) for kind in kinds)]
    if not values:
        raise at.refuse("no value is allowed")
    return pieces.either([pieces.literal(v) for v in values])


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    types: Mapping[str, tuple[type, ...]] = {
        "object": (dict,),
        "array": (list,),
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
    }
    return isinstance(value, types.get(kind, ()))


# -- types ---------------------------------------------------------------------------------------------------


def _object(said: Said, at: At) -> str:
    properties, required = said.get("properties", {}), said.get("required", [])
    more = said.get("additionalProperties", True)
    least, most = limits(said, "Properties", at)
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise at.refuse("properties must be an object and required a list")
    for name in required:
        if not isinstance(name, str) or name not in properties:
            raise at.refuse(f"required names {json.dumps(name)}, which properties does not: that is not served")
    if not properties and more is not False:
        if least > 1:
            raise at.refuse("minProperties above 1 is not served where names are free: they may be the same")
        value = _any(more, at.of("additionalProperties"))
        return pieces.bracketed(r"\{", pieces.several(pieces.pair(pieces.STRING, value), least, most), r"\}")
    if least > len(set(required)) or (most is not None and most < len(properties)):
        raise at.refuse("minProperties and maxProperties are not served beside optional properties")
    pairs = [
        (pieces.pair(pieces.literal(name), _any(one, at.of("properties", name))), name in required)
        for name, one in properties.items()
    ]
    return pieces.bracketed(r"\{", members(pairs), r"\}")


def _array(said: Said, at: At) -> str:
    least, most = limits(said, "Items", at)
    prefix = said.get("prefixItems", [])
    if not isinstance(prefix, list):
        raise at.refuse("prefixItems must be a list of schemas")
    leading = [_any(one, at.of("prefixItems", i)) for i, one in enumerate(prefix)]
    rest = said.get("items", not leading)
    return array(leading, None if rest is False else _any(rest, at.of("items")), least, most, at)


_KINDS: Mapping[str, Callable[[Said, At], str]] = {
    "object": _object,
    "array": _array,
    "string": string,
    "integer": integer,
    "number": number,
    "boolean": lambda said, at: pieces.BOOLEAN,
    "null": lambda said, at: "null",
}
