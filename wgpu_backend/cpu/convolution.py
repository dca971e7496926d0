"""NumPy twins of `wgpu_backend.ops.conv.convolution`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.conv.extents import Padding, padded_sides


@twin
def convolve(
    x: Array,
    weight: Array,
    *,
    strides: Sequence[int],
    paddings: Sequence[Padding],
    dilations: Sequence[int],
    groups: int,
    spread: Sequence[int] = (1, 1, 1),
    flipped: bool = False,
) -> Array:
    """Sum over taps of shifted pixels times a matrix a tap, group by group."""
    padded = padded_by(apart(x, spread), paddings)
    weight = weight[:, ::-1, ::-1, ::-1] if flipped else weight
    kernel, inner = weight.shape[1:4], weight.shape[4]
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(padded.shape[1:4], kernel, strides, dilations, strict=True)
    ]
    y = np.zeros((len(x), *out, groups, len(weight) // groups), np.float32)
    parts = weight.reshape(groups, -1, *kernel, inner)
    for tap in itertools.product(*map(range, kernel)):
        index = tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilations, strides, out, strict=True)
        )
        seen = padded[:, *index].reshape(len(x), *out, groups, inner)
        y += np.einsum("ndhwgc,goc->ndhwgo", seen, parts[:, :, *tap])
    return y.reshape(len(x), *out, len(weight))


def apart(x: Array, spread: Sequence[int]) -> Array:
    """Values of the axes between first and last with zeros between them."""
    shape = [(n - 1) * s + 1 if n else 0 for n, s in zip(x.shape[1:-1], spread, strict=True)]
    wide = np.zeros((len(x), *shape, x.shape[-1]), x.dtype)
    wide[:, *(slice(None, None, s) for s in spread)] = x
    return wide


def padded_by(x: Array, paddings: Sequence[Padding]) -> Array:
    """Zeros around the axes between first and last; values cut off for less than none."""
    sides = padded_sides(paddings)
    padded = np.pad(x, [(0, 0), *[(max(a, 0), max(b, 0)) for a, b in sides], (0, 0)])
    extents = padded.shape[1:-1]
    kept = (slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(extents, sides, strict=True))
    return padded[:, *kept]
