"""The state of an expansion: values and operations so far, where in the loops it is, checks on what is fed.

Knows: views, shapes, dtypes. Does not know: nodes and loops (``expand.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from draftline.compiler.core import MODEL_DTYPES, BoundStage, Loop, Op, Value, resolve_signature, shape_of
from draftline.compiler.plan import Chunk, View
from draftline.graph.core import Dim, Port, Signature
from draftline.graph.errors import PlanError

Views = dict[str, View | None]

OUTSIDE = Chunk(0, 0, 0)
"""Stands for the chunk outside of chunk loops."""


@dataclass(frozen=True)
class Mark:
    """Where in the loops an operation stands; ``suffix`` makes its name unique."""

    suffix: str = ""
    iteration: int = 0
    chunk: Chunk = OUTSIDE


@dataclass(frozen=True)
class Expansion:
    """The state of one expansion. ``dims`` maps a symbol to an integer, or to itself while it is late.
    ``values`` and ``items`` grow; the rest is fixed."""

    stages: Mapping[str, BoundStage]
    dims: Mapping[str, Dim]
    dtype: str
    values: dict[str, Value] = field(default_factory=dict)
    items: list[Op | Loop] = field(default_factory=list)

    def scratch(self) -> Expansion:
        """Return a copy to try something in: it sees the values, and what it adds is forgotten."""
        return replace(self, values=dict(self.values), items=[])

    def add(self, name: str, shape: tuple[Dim, ...], dtype: str) -> View:
        if name in self.values:
            raise PlanError(f"two values are called {name!r}: rename one of the nodes", rule="NamesUnique")
        self.values[name] = Value(name, shape, dtype)
        return View(name)

    def shape(self, view: View) -> tuple[Dim, ...]:
        return shape_of(view, self.values)


def narrow(view: View, start: int, length: int) -> View:
    """Return columns ``[start, start + length)`` (axis 1) of what ``view`` shows. Raises PlanError."""
    if view.axis is None:
        return View(view.buffer, 1, start, length)
    if view.axis == 1 and not view.squeeze:
        return View(view.buffer, 1, view.start + start, length)
    raise PlanError(f"columns of a slice of {view.buffer!r} along axis {view.axis} cannot be cut again")


def output_shapes(
    ctx: Expansion, signature: Signature, fed: Mapping[str, View | None], where: str
) -> dict[str, tuple[Dim, ...]]:
    """Return the shape of each output of ``signature`` in ``where``, fed like this. Raises PlanError."""
    connected = {port: None if view is None else ctx.shape(view) for port, view in fed.items()}
    return resolve_signature(signature, connected, ctx.dims, where)


def check_fed(ctx: Expansion, port: Port, view: View | None, where: str) -> None:
    """Raise PlanError if ``port`` is unfed although it must be fed, or is fed another dtype."""
    if view is None:
        if not port.optional:
            raise PlanError(f"{where}.{port.name} has no value, and it is not optional", rule="InputsFed")
        return
    shape_of(view, ctx.values)
    got, want = ctx.values[view.buffer].dtype, dtype_of(ctx, port)
    if got != want:
        raise PlanError(f"{where}.{port.name} wants {want}, gets {got} from {view.buffer}", rule="DtypesAgree")


def dtype_of(ctx: Expansion, port: Port) -> str:
    """Return the concrete dtype of a port."""
    return MODEL_DTYPES[ctx.dtype] if port.dtype == "model" else port.dtype
