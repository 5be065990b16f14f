"""Structured output from flags and a prompt's own key. Knows: their spelling. Does not know: what is served."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftline.graph.errors import RequestError, UsageError

from .structured import grammar_of

KEY = "structured_outputs"
"""Of a line of a prompt file, as in vLLM's requests."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One for each form."""
    parser.add_argument("--guided-json", metavar="SCHEMA", help="text that a JSON schema accepts; @FILE reads it")
    parser.add_argument("--guided-regex", metavar="R", help="text that a regular expression matches as a whole")
    parser.add_argument("--guided-choice", metavar="A,B", help="one of the texts; a JSON list if one has a comma")


def from_flags(args: argparse.Namespace) -> dict[str, Any]:
    """The grammar that the flags ask for, if any. Raises UsageError."""
    schema, choice = args.guided_json, args.guided_choice
    asked = {"--guided-json": schema, "--guided-regex": args.guided_regex, "--guided-choice": choice}
    given = [flag for flag, value in asked.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} each give the text a form; give one of them")
    if schema is not None and schema.startswith("@"):
        try:
            schema = Path(schema[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--guided-json {schema}: cannot be read: {error}") from None
    try:
        listed = None if choice is None else json.loads(choice) if choice.startswith("[") else choice.split(",")
        fields = {"guided_json": schema, "guided_regex": args.guided_regex, "guided_choice": listed}
        grammar = grammar_of(fields)
    except (RequestError, ValueError) as error:
        raise UsageError(f"{given[0]}: {str(error).split(': ', 1)[-1]}") from None
    return {} if grammar is None else {"grammar": grammar}


def from_line(line: Mapping[str, Any], where: str) -> tuple[tuple[str, Any], ...]:
    """What a prompt's own key asks for. Raises RequestError."""
    grammar = grammar_of({KEY: line.get(KEY)}, where)
    return () if grammar is None else (("grammar", grammar),)
