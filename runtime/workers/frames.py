"""Tensors as raw frames, where memory cannot be shared: dtype and shape in the header, bytes behind it.

Knows: the dtypes that may travel, lengths. Does not know: which buffers a message carries (``compiler/frames.py``).
Both ends have the plan, so a frame can only be what the plan says; everything else is refused before it is copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from draftline.graph.errors import TransportError

from .messages import TensorHeader

ALLOWED = {"int64": 8, "int32": 4, "bool": 1, "float32": 4, "bfloat16": 2, "float16": 2}
"""dtype → bytes per element."""


def put(tensors: Iterable[Tensor]) -> tuple[tuple[TensorHeader, ...], list[bytes]]:
    """Headers and frames of tensors. Raises TransportError for a dtype that may not travel."""
    headers, frames = [], []
    for tensor in tensors:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in ALLOWED:
            raise TransportError(f"dtype {dtype} may not travel; allowed: {', '.join(ALLOWED)}")
        headers.append(TensorHeader(dtype, tuple(tensor.shape)))
        frames.append(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return tuple(headers), frames


def take(headers: Sequence[TensorHeader], frames: Sequence[bytes], into: Sequence[Tensor]) -> None:
    """Copy the frames into the tensors that they are for. Raises TransportError, having copied nothing, if their
    number, a dtype, a shape or a length is not what it must be."""
    if not len(headers) == len(frames) == len(into):
        raise TransportError(f"{len(frames)} frames and {len(headers)} headers for {len(into)} tensors")
    for n, (header, frame, tensor) in enumerate(zip(headers, frames, into, strict=True)):
        wanted = TensorHeader(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        if header.dtype not in ALLOWED:
            raise TransportError(f"frame {n}: dtype {header.dtype!r} may not travel")
        if header != wanted:
            raise TransportError(f"frame {n} is {header.dtype} {header.shape}, not {wanted.dtype} {wanted.shape}")
        nbytes = math.prod(header.shape) * ALLOWED[header.dtype]
        if len(frame) != nbytes:
            raise TransportError(f"frame {n} has {len(frame)} bytes, {header.dtype} {header.shape} has {nbytes}")
    for frame, tensor in zip(frames, into, strict=True):
        if frame:
            tensor.copy_(torch.frombuffer(bytearray(frame), dtype=tensor.dtype).view(tensor.shape))
