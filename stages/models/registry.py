"""From a model's name or folder to a running model.

Knows: which ``model_type`` is read by which module. Does not know: their maths, where models lie (``places.py``).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import torch

from draftline.graph.errors import ConfigError, nearest
from draftline.stages.caches.core import Geometry
from draftline.stages.weights.files import check, load

from . import deepseek_v4, llama
from .core import Family, Loaded, Shape
from .places import PACKAGED, resolve

__all__ = ["FAMILIES", "PACKAGED", "cache_bytes", "check_weights", "family", "load_model", "read_shape", "resolve"]

FAMILIES: tuple[Family, ...] = (deepseek_v4.FAMILY, llama.FAMILY)


def family(path: Path) -> Family:
    """The family that reads the model in ``path``, by its config's ``model_type``. Raises ConfigError."""
    where = path / "config.json"
    try:
        raw = json.loads(where.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{where}: no such file; a model directory holds config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{where}: not readable as JSON: {error}") from None
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    for one in FAMILIES:
        if kind in one.model_types:
            return one
    known = [name for one in FAMILIES for name in one.model_types]
    raise ConfigError(f"{where}: model_type is {kind!r}; served: {', '.join(known)}{nearest(str(kind), known)}")


def read_shape(path: Path) -> Shape:
    """The model's shape from its config.json alone; no weights are read. Raises ConfigError."""
    return family(path).shape(path / "config.json")


def check_weights(path: Path, dtype: torch.dtype) -> None:
    """Look at config.json and the headers of the weight files alone. Raises ConfigError and WeightsError as
    ``load_model`` does."""
    specs, optional = family(path).specs(path / "config.json")
    check(path, specs, dtype, optional)


def cache_bytes(path: Path, geometry: Geometry, dtype: torch.dtype) -> int:
    """Bytes that the caches of the model in ``path`` take. Raises ConfigError."""
    return family(path).cache_bytes(path / "config.json", geometry, dtype)


def load_model(
    path: Path,
    geometry: Geometry,
    dtype: torch.dtype,
    device: torch.device,
    uses: Collection[str] = ("target", "drafter"),
) -> Loaded:
    """Read the weights and allocate the caches of the models in ``uses``; the others are None.

    Raises ConfigError and WeightsError.
    """
    one = family(path)
    specs, optional = one.specs(path / "config.json")
    tensors = load(path, specs, dtype, device, optional)
    target, drafter = one.build(path / "config.json", tensors, geometry, dtype, device, uses)
    return Loaded(read_shape(path), target, drafter, geometry, dtype, device)
