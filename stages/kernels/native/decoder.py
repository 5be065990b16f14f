"""The C++ decoder stack, called with tensors. Knows: memory layouts of ``decoder.cpp``. Does not know: models, slots.

A call leaves the interpreter lock to others while it runs. Everything is allocated when it is built.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.graph.errors import ModelError

from .build import library

_LANES = 16


class _Layer(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p)
        for name in [
            "attn_norm",
            "qkv",
            "qkv_bias",
            "q_norm",
            "k_norm",
            "o",
            "o_bias",
            "ffn_norm",
            "gate_up",
            "gate_up_bias",
            "down",
            "down_bias",
            "keys",
            "values",
        ]
    ]


class _Stack(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("layers", "embed", "enorm", "hnorm", "eh_proj", "freqs")),
        *(
            (name, ctypes.c_int64)
            for name in [
                "num_layers",
                "hidden",
                "inner",
                "heads",
                "kv_heads",
                "head_dim",
                "page_size",
                "pages_per_slot",
                "ring",
                "window",
            ]
        ),
        ("eps", ctypes.c_float),
        ("rope_scale", ctypes.c_float),
    ]


@dataclass(frozen=True)
class Matrices:
    """One layer: norms and biases float32 (or None), matrices [out, in] not packed yet, keys and values its cache."""

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    ffn_norm: Tensor
    gate: Tensor
    up: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class Sizes:
    """As in ``decoder.cpp``. ``page_size`` 0: a ring of ``ring`` rows per slot. ``window`` 0: all positions."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_scale: float
    max_len: int
    page_size: int = 0
    pages_per_slot: int = 0
    ring: int = 0
    window: int = 0


HEAD_DIMS = (16, 32, 48, 64, 80, 96, 112, 128, 256)


def fits(head_dim: int) -> bool:
    """Whether there is a kernel for heads of this width."""
    return head_dim in HEAD_DIMS


def pack(w: Tensor) -> Tensor:
    """w [out, in] (bf16 or float32) in blocks of sixteen outputs; rows that fill up the last block are zero."""
    out, into = w.shape
    w = w.contiguous()
    packed = torch.empty(-(-out // _LANES) * _LANES * into, dtype=w.dtype)
    library().dl_pack(
        ctypes.c_void_p(w.data_ptr()),
        ctypes.c_int64(out),
        ctypes.c_int64(into),
        ctypes.c_int(w.dtype == torch.bfloat16),
        ctypes.c_void_p(packed.data_ptr()),
    )
    return packed


def _padded(x: Tensor | None, to: int) -> Tensor | None:
    """float32, contiguous, with zeros behind."""
    if x is None:
        return None
    return torch.nn.functional.pad(x.float(), (0, to - len(x))).contiguous()


def _interleave(gate: Tensor, up: Tensor) -> Tensor:
    """Sixteen rows of gate, sixteen of up, and so on; rows that are missing are zero."""
    wide = -(-len(gate) // _LANES) * _LANES
    both = [torch.cat((t, t.new_zeros(wide - len(t), *t.shape[1:]))).unflatten(0, (-1, _LANES)) for t in (gate, up)]
    return torch.stack(both, dim=1).flatten(0, 2)


class DecoderStack:
    """A stack of layers, with a team of as many threads as torch has when it is made. ``run`` is what
    ``stages.models.llama.block.layer`` does, layer by layer, over its caches."""

    def __init__(
        self,
        sizes: Sizes,
        layers: Sequence[Matrices],
        embed: Tensor,
        freqs: Tensor,
        mix: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> None:
        """``embed`` [V, D]; ``freqs`` [head_dim/2]; ``mix``: enorm, hnorm and eh_proj of an MTP head."""
        if not fits(sizes.head_dim):
            raise ModelError(f"native kernels: head_dim is {sizes.head_dim}; {HEAD_DIMS} are served")
        self._lib, self._bf16 = library(), embed.dtype == torch.bfloat16
        self._kept: list[Tensor] = []  # what the C structures point at
        records = (_Layer * len(layers))(*(self._layer(sizes, m) for m in layers))
        self._records = records
        self._stack = _Stack(
            layers=ctypes.addressof(records),
            embed=self._keep(embed.contiguous()),
            freqs=self._keep(freqs.float().contiguous()),
            num_layers=len(layers),
            hidden=sizes.hidden,
            inner=sizes.inner,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            page_size=sizes.page_size,
            pages_per_slot=sizes.pages_per_slot,
            ring=sizes.ring,
            window=sizes.window,
            eps=sizes.eps,
            rope_scale=sizes.rope_scale,
        )
        if mix is not None:
            enorm, hnorm, eh_proj = mix
            self._stack.enorm, self._stack.hnorm = self._keep(enorm.float()), self._keep(hnorm.float())
            self._stack.eh_proj = self._keep(pack(eh_proj))
        self._sizes, self._threads = sizes, torch.get_num_threads()
        self._work: dict[tuple[int, int], Tensor] = {}

    def _keep(self, x: Tensor | None) -> int | None:
        if x is None:
            return None
        self._kept.append(x)
        return x.data_ptr()

    def _layer(self, s: Sizes, m: Matrices) -> _Layer:
        wide = -(-len(m.qkv) // _LANES) * _LANES
        hidden = -(-s.hidden // _LANES) * _LANES
        gate_up = _interleave(m.gate, m.up)
        bias = None
        if m.gate_bias is not None and m.up_bias is not None:
            bias = _interleave(m.gate_bias, m.up_bias).float().contiguous()
        # ``down`` reads rows of ``inner`` values whose width is rounded up; its missing channels are zero.
        return _Layer(
            attn_norm=self._keep(m.attn_norm.float()),
            qkv=self._keep(pack(m.qkv)),
            qkv_bias=self._keep(_padded(m.qkv_bias, wide)),
            q_norm=self._keep(None if m.q_norm is None else m.q_norm.float()),
            k_norm=self._keep(None if m.k_norm is None else m.k_norm.float()),
            o=self._keep(pack(m.o)),
            o_bias=self._keep(_padded(m.o_bias, hidden)),
            ffn_norm=self._keep(m.ffn_norm.float()),
            gate_up=self._keep(pack(gate_up)),
            gate_up_bias=self._keep(bias),
            down=self._keep(pack(m.down)),
            down_bias=self._keep(_padded(m.down_bias, hidden)),
            keys=self._keep(m.keys),
            values=self._keep(m.values),
        )

    def run(self, tokens: Tensor, positions: Tensor, slots: Tensor, pages: Tensor, hidden: Tensor | None) -> Tensor:
        """tokens, positions and slots [R] int64 (-1 in the latter two: a pad row), pages [N, G] int64, ``hidden`` [R,
        D] for a stack with a mix, to hidden states [R, D]; zeros for pad rows."""
        rows, threads = len(tokens), self._threads
        out = torch.zeros(rows, self._sizes.hidden, dtype=torch.bfloat16 if self._bf16 else torch.float32)
        if (rows, threads) not in self._work:
            size = self._lib.dl_work_bytes
            size.restype = ctypes.c_int64
            nbytes = size(
                ctypes.byref(self._stack),
                ctypes.c_int64(rows),
                ctypes.c_int64(self._sizes.max_len),
                ctypes.c_int(threads),
                ctypes.c_int(self._bf16),
            )
            self._work[rows, threads] = torch.zeros(nbytes, dtype=torch.uint8)
        tensors = [t.contiguous() for t in (tokens, positions, slots, pages)]
        hidden = None if hidden is None else hidden.contiguous()
        self._lib.dl_stack(
            ctypes.byref(self._stack),
            ctypes.c_int64(rows),
            *(ctypes.c_void_p(t.data_ptr()) for t in tensors),
            ctypes.c_void_p(None if hidden is None else hidden.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_void_p(self._work[rows, threads].data_ptr()),
            ctypes.c_int64(self._sizes.max_len),
            ctypes.c_int(threads),
            ctypes.c_int(self._bf16),
        )
        return out


class OutputMatrix:
    """A norm and an output matrix [V, D]: hidden states to logits or to their best tokens."""

    def __init__(self, norm: Tensor, matrix: Tensor, eps: float) -> None:
        self._lib, self._bf16, self._eps = library(), matrix.dtype == torch.bfloat16, eps
        self._norm, self._packed = norm.float().contiguous(), pack(matrix)
        self._vocab, self._hidden = matrix.shape
        self._threads = torch.get_num_threads()

    def logits(self, x: Tensor) -> Tensor:
        """x [R, D] to float32 logits [R, V]."""
        logits = torch.empty(len(x), -(-self._vocab // _LANES) * _LANES)
        self._run(x, logits)
        return logits[:, : self._vocab]

    def best(self, x: Tensor) -> Tensor:
        """x [R, D] to the likeliest token of each row [R] int64; the first of equals."""
        return self._run(x, None)

    def _run(self, x: Tensor, logits: Tensor | None) -> Tensor:
        rows, threads = len(x), self._threads
        x = x.contiguous()
        best = torch.empty(rows, dtype=torch.int64)
        work = torch.empty(rows * (self._hidden * 4 + threads * 16 + 8) + 1024, dtype=torch.uint8)
        self._lib.dl_head(
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(self._packed.data_ptr()),
            ctypes.c_void_p(self._norm.data_ptr()),
            ctypes.c_int64(rows),
            ctypes.c_int64(self._hidden),
            ctypes.c_int64(self._vocab),
            ctypes.c_float(self._eps),
            ctypes.c_void_p(None if logits is None else logits.data_ptr()),
            ctypes.c_void_p(best.data_ptr()),
            ctypes.c_void_p(work.data_ptr()),
            ctypes.c_int(threads),
            ctypes.c_int(self._bf16),
        )
        return best
