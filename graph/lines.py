"""YAML with line numbers. Knows: where each key stands. Does not know: what keys mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import BaseModel

from .errors import GraphFileError, nearest

Path = tuple[str | int, ...]


@dataclass
class Located:
    """A parsed document and the line of each key path."""

    source: str
    value: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)

    def at(self, path: Sequence[str | int]) -> str:
        """``file:line`` of the path, or of its nearest parent that is in the file."""
        here = tuple(path)
        while here and here not in self.lines:
            here = here[:-1]
        return f"{self.source}:{self.lines.get(here, 1)}"

    def known_prefix(self, path: Sequence[str | int]) -> Path:
        """The path without parts that a schema added (names of union members), as far as it is in the file."""
        out: Path = ()
        for part in path:
            if (*out, part) in self.lines:
                out = (*out, part)
            elif isinstance(part, str) and out and not isinstance(self._get(out), dict):
                continue
            elif isinstance(self._get(out), dict):
                out = (*out, part)
        return out

    def _get(self, path: Path) -> Any:
        value: Any = self.value
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value


def parse(text: str, source: str) -> Located:
    """Parse one mapping. Raises GraphFileError for broken YAML, a repeated key, or anything but a mapping."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise GraphFileError(f"{source}:{line}: broken YAML: {problem}", "yaml") from None
    if not isinstance(value, dict):
        kind = "nothing" if value is None else f"a {type(value).__name__}"
        raise GraphFileError(f"{source}:1: holds {kind}; a mapping with version, name, nodes is wanted", "yaml")
    located = Located(source, value)
    _walk(root, (), located)
    return located


def _walk(node: Any, path: Path, located: Located) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, key.value if isinstance(key, yaml.ScalarNode) else str(key.value)
            if name in seen:
                where = ".".join(map(str, (*path, name)))
                raise GraphFileError(f"{located.source}:{line}: key {where!r} was given before, on line {seen[name]}")
            seen[name] = line
            located.lines[(*path, name)] = line
            _walk(value, (*path, name), located)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            located.lines[(*path, i)] = item.start_mark.line + 1
            _walk(item, (*path, i), located)


def set_path(located: Located, override: str, model: type[BaseModel]) -> None:
    """Apply ``a.b.c=value``; the value is parsed as YAML. Raises GraphFileError for a path that is not there.

    A key that the file leaves out may be set where the schema knows it.
    """
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise GraphFileError(f"--set {override!r}: KEY.KEY=VALUE is wanted, such as settings.tile=16", "override")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise GraphFileError(f"--set {override!r}: the value is not YAML", "override") from None
    here: Any = located.value
    for i, key in enumerate(keys[:-1]):
        if key not in here and key in OPEN_KEYS:
            here[key] = {}
        if not isinstance(here.get(key), dict):
            where = ".".join(keys[: i + 1])
            raise GraphFileError(f"--set {override!r}: there is no {where!r}{nearest(key, map(str, here))}", "override")
        here = here[key]
    last = keys[-1]
    parent = keys[-2] if len(keys) > 1 else ""
    if last not in here and parent not in OPEN_KEYS and not (parent == "" and last in model.model_fields):
        raise GraphFileError(f"--set {override!r}: there is no {path!r}{nearest(last, map(str, here))}", "override")
    here[last] = value


OPEN_KEYS = ("settings", "placement", "options")
"""Mappings to which an override may add a key; the schema and the rules judge the result."""
