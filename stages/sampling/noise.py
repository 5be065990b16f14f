"""Randomness without state: a number is a function of (seed, position, use, token) and of nothing else.

Knows: 64-bit hashing in torch. Does not know: what the numbers are for.

The function is SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"; constants:
Vigna, prng.di.unimi.it/splitmix64.c), used as what it is, a hashed counter: number i of the stream with state s is
mix(s + (i + 1)·γ). A key is made by three such steps, through the seed, the position and the use, and token i takes
number i of the key's stream. It passes BigCrush; it is no cipher, and nobody needs one here.

All in int64: torch's products and sums wrap as two's complement, which are the same bits as unsigned.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Use = Literal[0, 1, 2, 3]
"""Uses have independent numbers for the same seed and position."""
TARGET: Use = 0
DRAFT: Use = 1
ACCEPT: Use = 2
RESIDUAL: Use = 3


def signed(n: int) -> int:
    """The int64 of the same 64 bits."""
    return n - (1 << 64) if n >= 1 << 63 else n


GAMMA = signed(0x9E3779B97F4A7C15)
_M1, _M2 = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)


def _right(z: Tensor, n: int) -> Tensor:
    """Logical shift."""
    return (z >> n).bitwise_and_((1 << (64 - n)) - 1)


def mix(z: Tensor) -> Tensor:
    """SplitMix64's output function of its state, int64 to int64."""
    z = (_right(z, 30).bitwise_xor_(z)).mul_(_M1)
    z = (_right(z, 27).bitwise_xor_(z)).mul_(_M2)
    return _right(z, 31).bitwise_xor_(z)


def number(state: Tensor, index: Tensor | int) -> Tensor:
    """Number ``index`` of the streams ``state``, int64; the two broadcast."""
    ahead = (index + 1) * GAMMA
    return mix(state + (signed(ahead % (1 << 64)) if isinstance(ahead, int) else ahead))


def key(seed: Tensor, position: Tensor, use: Use) -> Tensor:
    """The stream of (seed, position, use): int64, of the shape that the first two broadcast to."""
    return number(number(mix(seed + GAMMA), position), use)


def uniform(bits: Tensor) -> Tensor:
    """int64 to float64 in (0, 1), never 0 or 1: the 52 upper bits and a half, which float64 holds exactly."""
    return (_right(bits, 12).double() + 0.5).mul_(2.0**-52)


def uniforms(seed: Tensor, position: Tensor, use: Use) -> Tensor:
    """One number in (0, 1) for each (seed, position)."""
    return uniform(number(key(seed, position, use), 0))


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise [R, C] float64 of keys [R] for tokens [C] or [R, C]: -log(-log u)."""
    return uniform(number(keys[:, None], tokens)).log_().neg_().log_().neg_()
