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
    overrides: dict[Path, str] = field(default_factory=dict)
    """What ``--set`` put in place of the file's value."""

    def at(self, path: Sequence[str | int]) -> str:
        """``file:line`` or ``--set '…'`` of the path, or of its nearest parent that was given."""
        here = tuple(path)
        while here and here not in self.lines and here not in self.overrides:
            here = here[:-1]
        if here in self.overrides:
            return f"--set {self.overrides[here]!r}"
        return f"{self.source}:{self.lines.get(here, 1)}"

    def known_prefix(self, path: Sequence[str | int]) -> Path:
        """The path without parts that a schema added (names of union members), as far as it is in the file."""
        out: Path = ()
        for part in path:
            if (*out, part) in self.lines or (*out, part) in self.overrides:
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


class _Loader(yaml.SafeLoader):
    """Safe YAML without dates: ``2020-01-01`` is text. A value that cannot be read has a line, too."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:  # such as !!int x, or an integer of 5000 digits
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse(text: str, source: str) -> Located:
    """Parse one mapping. Raises GraphFileError for broken YAML, a repeated key, or anything but a mapping."""
    located = Located(source, {})
    value = _load(text, located)
    if not isinstance(value, dict):
        kind = "nothing" if value is None else f"a {type(value).__name__}"
        raise GraphFileError(f"{source}:1: holds {kind}; a mapping with version, name, nodes is wanted", "yaml")
    located.value = value
    return located


def _load(text: str, located: Located) -> Any:
    """The value of ``text``; fills ``located.lines``. Raises GraphFileError with the line of what is wrong."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _walk(root, (), located, ())
        return loader.construct_document(root)
    except RecursionError:
        raise GraphFileError(f"{located.source}:1: broken YAML: nested too deeply", "yaml") from None
    except yaml.YAMLError as error:
        mark, position = getattr(error, "problem_mark", None), getattr(error, "position", 0)
        line = mark.line + 1 if mark is not None else text.count("\n", 0, position) + 1
        context, problem = getattr(error, "context", None), getattr(error, "problem", None)
        says = ", ".join(part for part in (context, problem) if part) or str(error).splitlines()[0]
        raise GraphFileError(f"{located.source}:{line}: broken YAML: {says}", "yaml") from None


MAX_VALUES = 100_000
"""Values in a file, aliases counted each time: a few lines of aliases of aliases can stand for billions."""


def _walk(node: yaml.Node, path: Path, located: Located, above: tuple[yaml.Node, ...]) -> None:
    at = f"{located.source}:{node.start_mark.line + 1}"
    if any(node is other for other in above):
        raise GraphFileError(f"{at}: broken YAML: {'.'.join(map(str, path))!r} is an alias of what it is in", "yaml")
    if len(located.lines) > MAX_VALUES:
        raise GraphFileError(f"{at}: broken YAML: more than {MAX_VALUES} values, aliases counted each time", "yaml")
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, key.value if isinstance(key, yaml.ScalarNode) else ""
            where = ".".join(map(str, (*path, name)))
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                kind = key.tag.rpartition(":")[2]
                says = f"key {where!r} is read as {kind}, not as text; put it in quotes"
                raise GraphFileError(f"{located.source}:{line}: {says}", "yaml")
            if name in seen:
                says = f"key {where!r} was given before, on line {seen[name]}"
                raise GraphFileError(f"{located.source}:{line}: {says}", "yaml")
            seen[name] = line
            located.lines[(*path, name)] = line
            _walk(value, (*path, name), located, (*above, node))
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            located.lines[(*path, i)] = item.start_mark.line + 1
            _walk(item, (*path, i), located, (*above, node))


def set_path(located: Located, override: str, model: type[BaseModel]) -> None:
    """Apply ``a.b.c=value``; the value is parsed as YAML. Raises GraphFileError for a path that is not there.

    A key that the file leaves out may be set where the schema knows it. Placement's keys may have dots.
    """
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise GraphFileError(f"--set {override!r}: KEY.KEY=VALUE is wanted, such as settings.tile=16", "override")
    if keys[0] == "placement":
        keys = ["placement", ".".join(keys[1:])] if keys[1:] else keys
    try:
        value = _load(text, Located("value", {}))
    except GraphFileError as error:
        problem = str(error).partition(": ")[2].removeprefix("broken YAML: ")
        raise GraphFileError(f"--set {override!r}: the value is not YAML: {problem}", "override") from None
    here: Any = located.value
    for i, key in enumerate(keys[:-1]):
        if here.get(key) is None and _is_open(keys, i):
            here[key] = {}
        if not isinstance(here.get(key), dict):
            where = ".".join(keys[: i + 1])
            raise GraphFileError(f"--set {override!r}: there is no {where!r}{nearest(key, map(str, here))}", "override")
        here = here[key]
    last = keys[-1]
    open_here = _is_open(keys, len(keys) - 2) if len(keys) > 1 else last in model.model_fields
    if last not in here and not open_here:
        raise GraphFileError(f"--set {override!r}: there is no {path!r}{nearest(last, map(str, here))}", "override")
    here[last] = value
    given = tuple(keys)
    located.lines = {k: line for k, line in located.lines.items() if k[: len(given)] != given}
    located.overrides[given] = override


def _is_open(keys: Sequence[str], i: int) -> bool:
    """Whether ``keys[i]`` is a mapping to which an override may add; the schema and the rules judge the result."""
    return (i == 0 and keys[0] in ("settings", "placement")) or (
        i >= 2 and keys[i] == "options" and keys[i - 2] == "nodes"
    )
