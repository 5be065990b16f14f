"""A write-set checker. Helper for tests; no tests in here.

It watches torch itself: every ``index_copy_`` while it is on, with the rows it touched. So it sees writes that
the caches' own functions do not know of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WRITES = ("index_copy_", "index_put_", "scatter_", "index_add_", "index_fill_")


@dataclass
class WriteSet:
    """Rows written, per watched tensor (by its place in the list given)."""

    tensors: Sequence[torch.Tensor]
    rows: list[set[int]] = field(default_factory=list)

    def live(self, which: int) -> set[int]:
        """Rows written in tensor ``which`` without its two extra rows (zero row, and the row nobody reads)."""
        size = self.tensors[which].shape[0] - 2
        assert size not in self.rows[which], "the zero row was written"
        return {r for r in self.rows[which] if r < size}


class Watch(TorchDispatchMode):
    """``with Watch(tensors) as written: …``; an in-place write of a watched tensor by an op that is not known
    here is an error, not a gap."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.set = WriteSet(tensors, [set() for _ in tensors])
        self._which = {t.data_ptr(): i for i, t in enumerate(tensors)}

    def __enter__(self) -> WriteSet:  # type: ignore[override]
        super().__enter__()
        return self.set

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        written = first is not None and func._schema.arguments[0].alias_info is not None
        if written and func._schema.arguments[0].alias_info.is_write and first.data_ptr() in self._which:
            assert name in WRITES, f"unexpected write by {name}"
            index = args[2] if name in ("index_copy_", "scatter_", "index_add_", "index_fill_") else args[1][0]
            self.set.rows[self._which[first.data_ptr()]].update(index.flatten().tolist())
        return func(*args, **(kwargs or {}))
