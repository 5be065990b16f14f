"""A config file as a JSON object. Knows: files. Does not know: keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftline.graph.errors import ConfigError


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
