"""From a graph's settings and the caller's wishes to the sizes of a deployment.

Knows: defaults, precedence (caller over graph over default), ranges. Does not know: flags, files, models' weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftline.graph.core import Graph
from draftline.graph.errors import UsageError
from draftline.stages.models.core import Shape

from .deployment import DTYPES, Sizes

DEFAULTS: Mapping[str, Any] = {
    "model": "tiny-v4",
    "mtp": "",  # empty: the model's own MTP layer, or the packaged head for a model of this name
    "draft_model": "",  # empty: none
    "num_speculative_tokens": 0,
    "tile": 8,
    "max_num_seqs": 8,
    "max_model_len": 1024,
    "dtype": "fp32",
    "kernels": "auto",
    "layouts": "bxs",
    "capture": "eager",
    "prefill_tile": 64,
    "page_size": 0,  # 0: the smallest multiple of the model's compression ratios that is at least 64
    "max_num_batched_tokens": 512,
    "num_pages": 0,  # 0: enough for all slots to be full at once, so that nobody is ever preempted
    "prefix_caching": True,
    "async_scheduling": True,
    "max_new_tokens": 128,
    "runtime": "inline",
    "threads": 0,  # 0: by the model's size, see threads.py
    "replicas": 1,
    "overlap": False,
    "max_waiting": 1024,
    "max_restarts": 6,
    "stage_timeout": 60.0,
    "start_timeout": 120.0,
}

SNAPSHOTS_PER_SLOT = 4
"""Rings kept for shared prefixes, for each slot: a sliding window costs more than a page, so few ends are kept."""

AUTO = 7
"""The most drafts of adaptive depth where nobody says: with the tail, one chunk of eight rows."""

_LEAST = {
    "num_speculative_tokens": 0,
    "page_size": 0,
    "max_restarts": 0,
    "max_waiting": 0,
    "threads": 0,
    "num_pages": 0,
}
"""Smallest value of an integer setting where that is not 1."""


def parse_depth(value: Any, where: str = "num_speculative_tokens", shown: str = "") -> tuple[int, bool]:
    """(the most drafts per step, whether each step chooses its own number) of an integer, ``auto`` or ``auto:N``.
    Raises UsageError that names ``where`` and the value as ``shown``."""
    if isinstance(value, str):
        if match := re.fullmatch(r"auto(?::([1-9]\d{0,3}))?", value.strip()):
            return int(match[1] or AUTO), True
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value, False
    raise UsageError(
        f"{where} is {shown or repr(value)}; an integer of 0 or more is wanted, or auto, or auto:N for at most N"
    )


KERNELS = ("auto", "reference", "native")
LAYOUTS = ("bxs", "packed", "any")
CAPTURES = ("eager", "inductor")
RUNTIMES = ("inline", "zmq")


@dataclass(frozen=True)
class Settings:
    """Every setting with a value; names as in a graph file's ``settings``."""

    model: str
    mtp: str
    draft_model: str
    num_speculative_tokens: int
    tile: int
    max_num_seqs: int
    max_model_len: int
    dtype: str
    kernels: Literal["auto", "reference", "native"]
    layouts: Literal["bxs", "packed", "any"]
    capture: str
    prefill_tile: int
    page_size: int
    max_num_batched_tokens: int
    num_pages: int
    prefix_caching: bool
    async_scheduling: bool
    max_new_tokens: int
    runtime: str
    threads: int
    replicas: int
    overlap: bool
    max_waiting: int
    max_restarts: int
    stage_timeout: float
    start_timeout: float
    adaptive: bool = False
    """Whether each step chooses how many drafts, up to num_speculative_tokens."""
    asked_max_model_len: bool = False
    """Whether anybody asked for max_model_len; a default gives way to a smaller model, a wish does not."""


def merge(graph: Graph, wishes: Mapping[str, Any]) -> Settings:
    """``wishes`` that are None do not count. Raises UsageError for a value out of range."""
    own = dict(graph.settings)
    wanted = {k: v for k, v in wishes.items() if v is not None}
    values = {**DEFAULTS, **own, **wanted}
    values["num_speculative_tokens"], adaptive = parse_depth(values["num_speculative_tokens"])
    for name, value in values.items():
        if isinstance(DEFAULTS[name], bool):
            if not isinstance(value, bool):
                raise UsageError(f"{name} is {value!r}; true or false is wanted")
        elif isinstance(DEFAULTS[name], float):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
                raise UsageError(f"{name} is {value!r}; a number of seconds above 0 is wanted")
        elif isinstance(DEFAULTS[name], int):
            least = _LEAST.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name} is {value!r}; an integer of {least} or more is wanted")
    if values["dtype"] not in DTYPES:
        raise UsageError(f"dtype is {values['dtype']!r}; known: {', '.join(DTYPES)}")
    if values["kernels"] not in KERNELS:
        raise UsageError(f"kernels is {values['kernels']!r}; known: {', '.join(KERNELS)}")
    if values["layouts"] not in LAYOUTS:
        raise UsageError(f"layouts is {values['layouts']!r}; known: {', '.join(LAYOUTS)}")
    if values["capture"] not in CAPTURES:
        raise UsageError(f"capture is {values['capture']!r}; known: {', '.join(CAPTURES)}")
    if values["capture"] == "inductor" and values["kernels"] != "reference":
        if values["kernels"] == "native":
            raise UsageError("capture inductor compiles plain torch, not native kernels; use --kernels reference")
        values["kernels"] = "reference"
    if values["runtime"] not in RUNTIMES:
        raise UsageError(f"runtime is {values['runtime']!r}; known: {', '.join(RUNTIMES)}")
    return Settings(**values, adaptive=adaptive, asked_max_model_len="max_model_len" in wanted)


def sizes(settings: Settings, shape: Shape) -> Sizes:
    """The deployment's sizes for a model of this shape."""
    length = settings.max_model_len
    if not settings.asked_max_model_len:
        length = min(length, shape.max_len)
    page = settings.page_size
    if page == 0:
        unit = math.lcm(*shape.ratios)
        page = unit * -(-64 // unit)
    rings = shape.rings or (settings.num_speculative_tokens > 0 and shape.num_mtp_layers > 0)
    pages = -(-length // page)
    if 0 < settings.num_pages < pages:
        raise UsageError(
            f"num_pages is {settings.num_pages}; a request of max_model_len={length} alone takes {pages} pages of"
            f" {page} positions"
        )
    return Sizes(
        num_speculative_tokens=settings.num_speculative_tokens,
        tile=settings.tile,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=length,
        prefill_tile=settings.prefill_tile,
        page_size=page,
        dtype=settings.dtype,
        overlap=settings.overlap,
        kernels=settings.kernels,
        layouts=settings.layouts,
        stage_timeout=float(settings.stage_timeout),
        adaptive=settings.adaptive,
        capture=settings.capture,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        num_pages=settings.num_pages,
        prefix_caching=settings.prefix_caching,
        async_scheduling=settings.async_scheduling,
        snapshots=SNAPSHOTS_PER_SLOT * settings.max_num_seqs if rings else 0,
    )
