"""A config file as a JSON object, and as checked keys. Knows: files, errors. Does not know: which keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from draftline.graph.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a config file. Raises ConfigError."""
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; a model directory holds config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a JSON object is expected, not {type(raw).__name__}")
    return raw


def checked(keys: type[M], raw: Mapping[str, Any], where: str) -> M:
    """The keys that ``keys`` declares. Raises one ConfigError that names each wrong one and what would be right."""
    try:
        return keys.model_validate(dict(raw))
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc'])) or 'rule'}: {e['msg']}" for e in error.errors()]
        raise ConfigError(f"{where}: " + "; ".join(lines)) from None
