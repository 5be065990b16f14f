"""From a model's name or folder to a running model.

Knows: which ``model_type`` is read by which module. Does not know: their maths, where models lie (``places.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from draftline.graph.errors import ConfigError, ModelError, nearest
from draftline.stages.caches.core import Geometry
from draftline.stages.kernels.native.build import available, library
from draftline.stages.kernels.native.decoder import fits
from draftline.stages.weights.files import check, load

from . import deepseek_v4, llama
from .core import BuildOptions, Family, Loaded, ModelFiles, Shape
from .draft import within
from .jsonfile import read_json
from .mtp_head.config import check_fits, load_head_config
from .mtp_head.model import MtpHeadDrafter, head_cache_bytes
from .mtp_head.native import NativeMtpHeadDrafter
from .mtp_head.weights import assemble_head, head_specs
from .places import PACKAGED, PACKAGED_HEADS, resolve, resolve_head

__all__ = [
    "FAMILIES",
    "PACKAGED",
    "cache_bytes",
    "check_weights",
    "family",
    "load_model",
    "locate",
    "read_shape",
    "uses_native",
]

Kernels = Literal["auto", "reference", "native"]
FAMILIES: tuple[Family, ...] = (deepseek_v4.FAMILY, llama.FAMILY)


def family(path: Path) -> Family:
    """The family that reads the model in ``path``, by its config's ``model_type``. Raises ConfigError."""
    where = path / "config.json"
    kind = read_json(where).get("model_type")
    for one in FAMILIES:
        if kind in one.model_types:
            return one
    known = [name for one in FAMILIES for name in one.model_types]
    raise ConfigError(f"{where}: model_type is {kind!r}; served: {', '.join(known)}{nearest(str(kind), known)}")


def locate(model: str, mtp: str = "", draft_model: str = "") -> ModelFiles:
    """The files of a model's name or folder, with the MTP head in ``mtp``, the one that comes with the package for a
    model of that name, or none; and those of a draft model. Raises ModelError."""
    draft = resolve(draft_model) if draft_model else None
    if mtp:
        return ModelFiles(resolve(model), resolve_head(mtp), draft)
    head = PACKAGED_HEADS / Path(model).name
    packaged = Path(model).name == model and (head / "config.json").is_file()
    return ModelFiles(resolve(model), head if packaged else None, draft)


def read_shape(files: ModelFiles) -> Shape:
    """The model's shape from its config.json alone; no weights are read. A draft model must hold the context and fit
    the pages as the target does. Raises ConfigError."""
    shape = family(files.folder).shape(files.folder / "config.json")
    if files.mtp is not None:
        check_fits(load_head_config(files.mtp / "config.json"), shape, files.mtp)
        shape = replace(shape, num_mtp_layers=1)
    if files.draft_model is not None:
        draft = read_shape(ModelFiles(files.draft_model))
        ratios = tuple(dict.fromkeys((*shape.ratios, *draft.ratios)))
        rings = shape.rings or draft.rings
        shape = replace(shape, max_len=min(shape.max_len, draft.max_len), ratios=ratios, rings=rings)
    return shape


def check_weights(files: ModelFiles, dtype: torch.dtype) -> None:
    """Look at config.json and the headers of the weight files alone. Raises ConfigError and WeightsError as
    ``load_model`` does."""
    specs, optional = family(files.folder).specs(files.folder / "config.json")
    check(files.folder, specs, dtype, optional)
    if files.mtp is not None:
        check(files.mtp, head_specs(load_head_config(files.mtp / "config.json")), dtype)
    if files.draft_model is not None:
        check_weights(ModelFiles(files.draft_model), dtype)


def cache_bytes(files: ModelFiles, geometry: Geometry, dtype: torch.dtype) -> int:
    """Bytes that the caches of the model take. Raises ConfigError."""
    own = family(files.folder).cache_bytes(files.folder / "config.json", geometry, dtype)
    if files.mtp is not None:
        own += head_cache_bytes(load_head_config(files.mtp / "config.json"), geometry, dtype)
    return own if files.draft_model is None else own + cache_bytes(ModelFiles(files.draft_model), geometry, dtype)


def uses_native(files: ModelFiles, kernels: Kernels, device: torch.device) -> bool:
    """Whether native kernels are used; compiles them if so. Raises ModelError and CapacityError if they must be and
    cannot."""
    widths = [family(files.folder).native_heads(files.folder / "config.json")]
    if files.mtp is not None:
        widths.append(load_head_config(files.mtp / "config.json").layer.head_dim)
    served = device.type == "cpu" and all(fits(width) for width in widths)
    if kernels == "native":
        if not served:
            raise ModelError(f"{files.folder}: there are no native kernels for this model; use --kernels reference")
        library()
    return kernels == "native" or (kernels == "auto" and served and available())


def load_model(
    files: ModelFiles,
    geometry: Geometry,
    dtype: torch.dtype,
    device: torch.device,
    uses: Collection[str] = ("target", "drafter"),
    kernels: Kernels = "auto",
) -> Loaded:
    """Read the weights and allocate the caches of the models in ``uses`` (target, drafter, draft_model); the others
    are None.

    ``kernels``: ``reference`` is plain torch; ``native`` compiles C++ at first use; ``auto`` is native where it can be.
    Raises ConfigError and WeightsError, CapacityError where native kernels are asked for and cannot be had.
    """
    shape, draft = read_shape(files), None
    if files.draft_model is not None and "draft_model" in uses:
        alone = load_model(ModelFiles(files.draft_model), geometry, dtype, device, ("target",), kernels).target
        draft = None if alone is None else within(alone, shape.vocab_size)
    if not {"target", "drafter"} & set(uses):
        return Loaded(shape, None, None, geometry, dtype, device, draft)
    path, one = files.folder / "config.json", family(files.folder)
    specs, optional = one.specs(path)
    tensors = load(files.folder, specs, dtype, device, optional)
    own = [use for use in uses if use != "drafter" or files.mtp is None]
    native = uses_native(files, kernels, device)
    target, drafter = one.build(path, tensors, BuildOptions(geometry, dtype, device, own, native))
    if files.mtp is not None and "drafter" in uses:
        c = load_head_config(files.mtp / "config.json")
        w = assemble_head(c, load(files.mtp, head_specs(c), dtype, device))
        embed, head = (tensors[name] for name in one.matrices(path))
        if native:
            drafter = NativeMtpHeadDrafter(c, w, embed, head, geometry, dtype)
        else:
            drafter = MtpHeadDrafter(c, w, embed, head, geometry, dtype, device)
    return Loaded(shape, target, drafter, geometry, dtype, device, draft)
