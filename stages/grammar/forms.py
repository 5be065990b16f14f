"""The regular expression of a grammar. Knows: choices, and where schemas are read. Does not know: automata, tokens."""

from __future__ import annotations

import json
from typing import Any

from draftline.graph.errors import RequestError
from draftline.stages.sampling.params import Grammar

from .pieces import any_object, escape
from .schema import schema_regex


def regex_of(grammar: Grammar) -> str:
    """Raises RequestError for a grammar that is wrong or not served."""
    if grammar.kind == "json_object":
        return any_object()
    if grammar.kind == "regex":
        return grammar.spec
    try:
        value: Any = json.loads(grammar.spec)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}") from None
    if grammar.kind == "json_schema":
        return schema_regex(value)
    if not isinstance(value, list) or not value or any(not isinstance(one, str) or not one for one in value):
        raise RequestError("a list of strings of at least one character is wanted")
    return "|".join(escape(one) for one in dict.fromkeys(value))
