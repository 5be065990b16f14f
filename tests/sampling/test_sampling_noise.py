"""Randomness as a function: equal to its definition in plain integers, uniform, and independent of all but its key."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from laws import p_value

from draftline.stages.sampling import noise

MASK = (1 << 64) - 1


def splitmix(state: int) -> int:
    """Output of one step from ``state``, as published, on unbounded integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_it_is_splitmix64():
    """The first numbers of seed 1234567, which are published with many implementations."""
    state = torch.tensor([1234567])
    got = [int(noise.number(state, i)) & MASK for i in range(3)]
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert got == [splitmix(1234567 + i * 0x9E3779B97F4A7C15) for i in range(3)]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), noise.signed(2**64 - 1)])
@pytest.mark.parametrize("use", [noise.TARGET, noise.DRAFT, noise.ACCEPT, noise.RESIDUAL])
def test_keys_wrap_as_unsigned_integers_do(seed, use):
    gamma = 0x9E3779B97F4A7C15
    for position in (0, 1, 163839):
        want = splitmix(seed & MASK)
        want = splitmix((want + position * gamma) & MASK)
        want = splitmix((want + use * gamma) & MASK)
        assert int(noise.key(torch.tensor([seed]), torch.tensor([position]), use)) & MASK == want


def test_never_zero_and_never_one():
    ends = noise.uniform(torch.tensor([0, -1, 2**63 - 1, -(2**63)]))
    assert float(ends.min()) == 2.0**-53
    assert float(ends.max()) == 1 - 2.0**-53
    largest = -(-ends.log()).log()
    assert largest.isfinite().all()


def test_gumbel_noise_has_its_law():
    """Kolmogorov-Smirnov against exp(-exp(-x)) over 10^6 numbers; 1.95 / sqrt(n) is exceeded once in 1000 seeds."""
    g = noise.gumbel(noise.key(torch.arange(1000), torch.tensor([7]), noise.TARGET), torch.arange(1000)).flatten()
    cdf = (-(-g.sort().values).exp()).exp()
    n = len(g)
    gap = (cdf - (torch.arange(n, dtype=torch.float64) + 0.5) / n).abs().max()
    assert float(gap) < 1.95 / math.sqrt(n)


def test_neighbouring_keys_are_independent():
    """Pairs of numbers whose keys differ in one place, in 16 x 16 cells."""
    n = 100_000
    every, at = torch.arange(n), torch.full((n,), 3)
    streams = {
        "seed": noise.uniforms(every, at, noise.ACCEPT),
        "next seed": noise.uniforms(every + 1, at, noise.ACCEPT),
        "next position": noise.uniforms(every, at + 1, noise.ACCEPT),
        "other use": noise.uniforms(every, at, noise.RESIDUAL),
        "next token": noise.uniform(noise.number(noise.key(every, at, noise.ACCEPT), 1)),
        "a position each": noise.uniforms(at, every, noise.TARGET),
    }
    flat = torch.full((256,), 1 / 256, dtype=torch.float64)
    for one, other in itertools.combinations(streams, 2):
        cells = torch.stack([(streams[name] * 16).long() for name in (one, other)], 1)
        assert p_value(cells, flat, 16) > 1e-6, (one, other)
