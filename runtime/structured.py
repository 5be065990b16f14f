"""Structured output as requests ask for it: OpenAI's ``response_format``, vLLM's ``structured_outputs`` and the older
``guided_*`` fields.

Knows: the fields' forms. Does not know: HTTP, flags, how a grammar is kept to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from draftline.graph.errors import RequestError, nearest
from draftline.stages.sampling.params import Grammar

from .grammars import fault

FIELDS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")
"""What ``grammar_of`` looks at."""
KINDS = ("json", "regex", "choice", "json_object")
_FORMATS = ("text", "json_object", "json_schema")


def grammar_of(fields: Mapping[str, Any], where: str = "") -> Grammar | None:
    """The grammar that a request's fields ask for, compiled once to see that it can be served; None for any text.
    Fields that are missing or None ask for nothing; others than FIELDS are not looked at. Raises RequestError, which
    begins with ``where`` and names the field."""
    found: dict[str, Grammar] = {}
    prefix = f"{where}: " if where else ""
    for field in FIELDS:
        value = fields.get(field)
        if value is None:
            continue
        if field == "response_format":
            made = _response_format(value, prefix + field)
        elif field == "structured_outputs":
            made = _structured_outputs(value, prefix + field)
        else:
            made = _made(field.removeprefix("guided_"), value, prefix + field)
        if made is not None:
            found[field] = made
    if len(found) > 1:
        raise RequestError(f"{prefix}{' and '.join(found)} both give the text a form; give one of them")
    return next(iter(found.values()), None)


def _response_format(value: Any, field: str) -> Grammar | None:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise RequestError(f"{field}: type is {kind!r}; one of {', '.join(_FORMATS)} is wanted")
    if kind == "text":
        return None
    if kind == "json_object":
        return _made(kind, True, field)
    inner = value.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if schema is None:
        raise RequestError(f'{field}: type json_schema needs {{"json_schema": {{"schema": …}}}}')
    return _made("json", schema, f"{field}.json_schema.schema")


def _structured_outputs(value: Any, field: str) -> Grammar | None:
    if not isinstance(value, Mapping):
        raise RequestError(f'{field}: an object is wanted, such as {{"json": {{"type": "object"}}}}')
    asked = {key: one for key, one in value.items() if one is not None and one is not False}
    for key in asked:
        if key not in KINDS:
            raise RequestError(f"{field}: {key!r} is not served{nearest(str(key), KINDS)}")
    if len(asked) > 1:
        raise RequestError(f"{field}: {' and '.join(asked)} each give the text a form; give one of them")
    return next((_made(key, one, f"{field}.{key}") for key, one in asked.items()), None)


def _made(kind: str, value: Any, field: str) -> Grammar:
    """Of one of KINDS, whose value was given in ``field``."""
    if kind == "json_object":
        if value is not True:
            raise RequestError(f"{field}: is {value!r}; true or false is wanted")
        return Grammar("json_object")
    if kind == "regex":
        if not isinstance(value, str) or not value:
            raise RequestError(f"{field}: a regular expression is wanted, as a string")
        grammar = Grammar("regex", value)
    elif kind == "choice":
        if not isinstance(value, list):
            raise RequestError(f"{field}: a list of strings is wanted")
        grammar = Grammar("choice", _compact(value, field))
    else:
        if isinstance(value, str):  # vLLM takes the schema's text, too
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"{field}: not JSON: {error}") from None
        grammar = Grammar("json_schema", _compact(value, field))
    wrong = fault(grammar)
    if wrong:
        raise RequestError(f"{field}: {wrong}")
    return grammar


def _compact(value: Any, field: str) -> str:
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{field}: not JSON: {error}") from None
