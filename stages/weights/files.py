"""Reading safetensors: one file or an indexed set of shards, checked against a table of names and shapes.

Knows: files, names, shapes, dtypes. Does not know: what a tensor is for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftline.graph.errors import WeightsError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorSpec:
    """Shape and kind of one tensor: ``model`` is the compute dtype, else a torch dtype name."""

    shape: tuple[int, ...]
    kind: str = "model"


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


def check(
    directory: Path, specs: Mapping[str, TensorSpec], dtype: torch.dtype, optional: Collection[str] = ()
) -> dict[str, Path]:
    """Name of each wanted tensor → file, having read only the files' headers. Tensors named in ``optional`` may be
    there and are not looked at.

    Raises one WeightsError that lists all missing, extra, mis-shaped and wrongly typed tensors by name and file.
    """
    where = {n: p for n, p in shards(directory).items() if n in specs or n not in optional}
    problems = [f"missing: {n}" for n in specs if n not in where]
    problems += [f"not part of this model: {n} in {where[n].name}" for n in where if n not in specs]
    for path in sorted(set(where.values())):
        names = [n for n, p in where.items() if p == path and n in specs]
        with _open(path) as file:
            held = set(file.keys())
            for name in names:
                if name not in held:
                    problems.append(f"missing: {name}, which the index places in {path.name}")
                    continue
                spec, stored = specs[name], file.get_slice(name)
                shape, kind = tuple(stored.get_shape()), _DTYPES.get(stored.get_dtype())
                wanted = _wanted(spec, dtype)
                if shape != tuple(spec.shape):
                    problems.append(f"shape: {name} in {path.name} is {list(shape)}, wanted {list(spec.shape)}")
                elif kind is None or kind.is_floating_point != wanted.is_floating_point:
                    said = kind or stored.get_dtype()
                    problems.append(f"dtype: {name} in {path.name} is {said}, cannot serve as {wanted}")
    if problems:
        raise WeightsError(f"{directory}: " + _listing(problems))
    return where


_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
}
"""Names in a file's header → dtypes that can be converted without loss of meaning; one byte per element never can."""


def _wanted(spec: TensorSpec, dtype: torch.dtype) -> torch.dtype:
    return dtype if spec.kind == "model" else getattr(torch, spec.kind)


def load(
    directory: Path,
    specs: Mapping[str, TensorSpec],
    dtype: torch.dtype,
    device: torch.device,
    optional: Collection[str] = (),
) -> dict[str, Tensor]:
    """Every tensor of ``specs``, converted to ``dtype`` (kind ``model``) or to its own kind. Raises WeightsError as
    ``check`` does."""
    where = check(directory, specs, dtype, optional)
    out: dict[str, Tensor] = {}
    for path in sorted(set(where.values())):
        with _open(path) as file:
            for name in (n for n, p in where.items() if p == path):
                out[name] = file.get_tensor(name).to(device=device, dtype=_wanted(specs[name], dtype))
    return out


def _listing(problems: Iterable[str], most: int = 20) -> str:
    lines = list(problems)
    more = f"\n  … and {len(lines) - most} more" if len(lines) > most else ""
    return f"{len(lines)} problem(s) with its tensors:\n  " + "\n  ".join(lines[:most]) + more
