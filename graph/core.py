"""The nouns of a graph: ports, signatures, nodes, loops, graphs. Immutable values, nothing else.

Knows: how a decode step is declared. Does not know: what a stage computes, tensors, devices.

A value is named by a reference: ``"tail"`` is the graph's own input ``tail``; ``"draft.drafts"`` is
output ``drafts`` of node ``draft``.

Symbolic dimensions. A shape mixes integers and symbols. Symbols of a signature are local to the node:
they are unified with the shapes of what is connected. A symbol that no input binds means the graph's
symbol of the same name. The compiler gives these graph symbols their values:

    N  slots (max_num_seqs)      K  drafts per step         M  rows kept per slot, K_max + 1
    S  rows per chunk            W  padded window, C * S    G  cache pages per slot
    L  max_model_len             H  residual streams        D  hidden size
    P  rows of one prefill call  V  vocabulary              Q  words of a slot's sampling parameters
    Y  log-probabilities per row, 1 + the most that a request may ask for
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

Dim = int | str

DTYPES = ("int64", "int32", "bool", "float32", "bfloat16", "float16", "model")
"""Port dtypes. ``model`` is the dtype that the target computes in, bound by the compiler."""


@dataclass(frozen=True)
class Port:
    """A typed, named end of a connection. ``optional`` inputs may stay unconnected: a carried input
    that has no value in the first iteration is None there."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    optional: bool = False


@dataclass(frozen=True)
class Signature:
    """What a stage takes and gives. ``per_wave`` stages run once for each wave of a chunk."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    options: tuple[tuple[str, Any], ...] = ()
    """Option names with their defaults; a default of ``...`` means that the option is required."""
    per_wave: bool = False
    uses: tuple[str, ...] = ()
    """Models whose caches the stage reads or writes: ``target``, ``drafter``, ``draft_model``. All stages that use one
    model stand on one device, and a worker process loads only what its stages use."""
    shift: tuple[tuple[str, int], ...] = ()
    """(input port, n) pairs of a stage that builds the window: column j of its [N, W] outputs needs columns up to
    j - n of that input and nothing later, so the compiler may run it for a part of the window at a time."""
    ahead: tuple[tuple[str, int], ...] = ()
    """(input port, n) pairs of a stage in a chunk loop: of that whole [N, W] input it reads columns up to n past the
    chunk's end and nothing later."""
    packs: str = ""
    """Input [N, S] int64 of a ``per_wave`` stage whose elements of 0 or more are the rows that stand for somebody. A
    stage that names it can serve a wave of any T of them (layout ``packed T``), not only whole requests."""
    cancel: str = ""
    """Optional bool [N] input of a drafter: a slot that is false in it need not be drafted for."""

    def input(self, name: str) -> Port | None:
        return next((p for p in self.inputs if p.name == name), None)

    def output(self, name: str) -> Port | None:
        return next((p for p in self.outputs if p.name == name), None)


@dataclass(frozen=True)
class Repeat:
    """Run a node ``times`` in sequence. ``carry`` feeds output → input of the next iteration;
    ``collect`` stacks an output of all iterations on a new axis 1, under a new name."""

    times: Dim
    carry: tuple[tuple[str, str], ...]
    """(input port, output port) pairs."""
    collect: tuple[tuple[str, str], ...] = ()
    """(output port, collected name) pairs: [N, …] becomes [N, times, …]."""


@dataclass(frozen=True)
class ForEach:
    """Run a node for each chunk of S columns of the padded window.

    ``each`` inputs [N, W, …] arrive cut along axis 1 as [N, S, …]; all others arrive whole. ``carry``
    as in ``Repeat``. ``collect`` outputs [N, S, …] are joined along axis 1 to [N, W, …].
    """

    each: tuple[str, ...]
    carry: tuple[tuple[str, str], ...] = ()
    collect: tuple[tuple[str, str], ...] = ()
    over: str = "chunk"


@dataclass(frozen=True)
class Node:
    """One stage, or one nested graph, with its connections. Exactly one of stage and graph is set."""

    name: str
    inputs: tuple[tuple[str, str], ...]
    """(input port, reference) pairs, sorted by port."""
    stage: str = ""
    """Registry name such as ``draft.mtp``, or ``package.module:Class``."""
    graph: Graph | None = None
    options: tuple[tuple[str, Any], ...] = ()
    loop: Repeat | ForEach | None = None


@dataclass(frozen=True)
class Graph:
    """A decode step (or a prefill call) as a value: equal graphs compare equal and hash the same."""

    name: str
    inputs: tuple[Port, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, str], ...]
    """(output name, reference) pairs."""
    state: tuple[tuple[str, str], ...] = ()
    """(input name, reference) pairs: the reference's value is that input of the next step. The
    value lives where it was computed and never travels to the driver."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Deployment settings with their values, such as ("num_speculative_tokens", 3)."""
    placement: tuple[tuple[str, str], ...] = ()
    """(node name, device) pairs; a node that is not named runs on the default device."""
    prefill: str = ""
    """Name of the packaged graph, or path of the file, that fills the caches for this one."""
    doc: str = field(default="", compare=False)

    def node(self, name: str) -> Node | None:
        return next((n for n in self.nodes if n.name == name), None)

    @property
    def key(self) -> str:
        """A hash of the canonical form, stable over processes, platforms and Python versions."""
        return hashlib.sha256(json.dumps(canonical(self), sort_keys=True).encode()).hexdigest()


def canonical(value: Any) -> Any:
    """Return nested dicts, lists and scalars that are the same for equal graphs (``doc`` left out)."""
    if isinstance(value, Graph | Node | Port | Signature | Repeat | ForEach):
        fields = {k: canonical(v) for k, v in vars(value).items() if k != "doc"}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [canonical(v) for v in value]
    if isinstance(value, dict):
        return {str(k): canonical(v) for k, v in value.items()}
    return value
