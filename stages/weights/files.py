"""Reading safetensors: one file or an indexed set of shards, checked against a table of names and shapes.

Knows: files, names, shapes, dtypes. Does not know: what a tensor is for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftline.graph.errors import WeightsError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Spec(Protocol):
    """Shape and kind (``model``, or a torch dtype name) of one wanted tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def kind(self) -> str: ...


def shards(directory: Path) -> dict[str, Path]:
    """Tensor name → file that holds it. Raises WeightsError on a missing or unreadable file or index."""
    index = directory / INDEX
    if index.exists():
        try:
            table = json.loads(index.read_text("utf-8"))["weight_map"]
            return {str(name): directory / str(file) for name, file in table.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{index}: no readable weight_map: {error!r}") from None
    single = directory / SINGLE
    if not single.exists():
        raise WeightsError(f"{directory}: holds neither {SINGLE} nor {INDEX}")
    with _open(single) as file:
        return dict.fromkeys(file.keys(), single)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file, though the index names it") from None
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: truncated or corrupt safetensors file: {error}") from None


def load(directory: Path, specs: Mapping[str, Spec], dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Every tensor of ``specs``, converted to ``dtype`` (kind ``model``) or to its own kind.

    Raises one WeightsError that lists all missing, extra, mis-shaped and wrongly typed tensors by name and file.
    """
    where = shards(directory)
    problems = [f"missing: {n}" for n in specs if n not in where]
    problems += [f"not part of this model: {n} in {where[n].name}" for n in where if n not in specs]
    out: dict[str, Tensor] = {}
    for path in sorted(set(where.values())):
        names = [n for n, p in where.items() if p == path and n in specs]
        with _open(path) as file:
            held = set(file.keys())
            for name in names:
                if name not in held:
                    problems.append(f"missing: {name}, which the index places in {path.name}")
                    continue
                spec = specs[name]
                shape = tuple(file.get_slice(name).get_shape())
                if shape != tuple(spec.shape):
                    problems.append(f"shape: {name} in {path.name} is {list(shape)}, wanted {list(spec.shape)}")
                    continue
                tensor = file.get_tensor(name)
                wanted = dtype if spec.kind == "model" else getattr(torch, spec.kind)
                if tensor.is_floating_point() != wanted.is_floating_point or tensor.element_size() == 1:
                    problems.append(f"dtype: {name} in {path.name} is {tensor.dtype}, cannot serve as {wanted}")
                    continue
                out[name] = tensor.to(device=device, dtype=wanted)
    if problems:
        raise WeightsError(f"{directory}: " + _listing(problems))
    return out


def _listing(problems: Iterable[str], most: int = 20) -> str:
    lines = list(problems)
    more = f"\n  … and {len(lines) - most} more" if len(lines) > most else ""
    return f"{len(lines)} problem(s) with its tensors:\n  " + "\n  ".join(lines[:most]) + more
