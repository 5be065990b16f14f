"""From a model's name or folder to a running model.

Knows: which ``model_type`` is read by which module, where packaged models lie. Does not know: their maths.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch

from draftline.graph.errors import ModelError, nearest
from draftline.stages.caches.core import Geometry
from draftline.stages.weights.files import check, load

from .core import Loaded, Shape
from .deepseek_v4 import model as deepseek_v4
from .deepseek_v4.config import Config, load_config
from .deepseek_v4.model import DeepseekV4Drafter, DeepseekV4Target
from .deepseek_v4.weights import assemble, tensor_specs

PACKAGED = Path(__file__).parent.parent / "weights"


def packaged_names() -> list[str]:
    """Models that come with the package."""
    return sorted(p.parent.name for p in PACKAGED.glob("*/config.json"))


def resolve(name: str) -> Path:
    """A folder with config.json, or the name of a packaged model. Raises ModelError with the nearest names."""
    for path in (Path(name), PACKAGED / name):
        if (path / "config.json").is_file():
            return path
    if Path(name).is_dir():
        raise ModelError(f"model {name!r}: the folder has no config.json")
    raise ModelError(
        f"model {name!r}: no such folder, and no packaged model of that name{nearest(name, packaged_names())}"
    )


def shape_of(c: Config) -> Shape:
    """The compiler's view of a config."""
    return Shape(
        vocab_size=c.vocab_size,
        num_streams=c.hc_mult,
        hidden_size=c.hidden_size,
        max_len=c.max_position_embeddings,
        num_mtp_layers=c.num_nextn_predict_layers,
        ratios=c.ratios,
        bos_token_id=c.bos_token_id,
        eos_token_ids=c.eos_token_ids,
    )


def read_shape(path: Path) -> Shape:
    """The model's shape from its config.json alone; no weights are read. Raises ConfigError."""
    return shape_of(load_config(path / "config.json"))


def check_weights(path: Path, dtype: torch.dtype) -> None:
    """Look at config.json and the headers of the weight files alone. Raises ConfigError and WeightsError as
    ``load_model`` does."""
    check(path, tensor_specs(load_config(path / "config.json")), dtype)


def cache_bytes(path: Path, geometry: Geometry, dtype: torch.dtype) -> int:
    """Bytes that the caches of the model in ``path`` take. Raises ConfigError."""
    return deepseek_v4.cache_bytes(load_config(path / "config.json"), geometry, dtype)


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
    c = load_config(path / "config.json")
    w = assemble(c, load(path, tensor_specs(c), dtype, device))
    target = DeepseekV4Target(c, w, geometry, dtype, device) if "target" in uses else None
    drafts = w.mtp is not None and "drafter" in uses
    drafter = DeepseekV4Drafter(c, w, geometry, dtype, device) if drafts else None
    return Loaded(shape_of(c), target, drafter, geometry, dtype, device)
