"""NumPy twins of `wgpu_backend.ops.conv.convolution`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def convolve(
    x: Array,
    weight: Array,
    *,
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Array:
    """Sum over taps of shifted pixels times a matrix a tap, group by group."""
    padded = np.pad(x, [(0, 0), *[(p, p) for p in paddings], (0, 0)])
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


@twin
def im2col(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    paddings: Sequence[int] = (0, 0),
    dilations: Sequence[int] = (1, 1),
) -> Array:
    """Shifted pixels, a tap after the other."""
    padded = np.pad(x, [(0, 0), *[(p, p) for p in paddings], (0, 0)])
    height, width = (
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(padded.shape[1:3], kernel, strides, dilations, strict=True)
    )
    taps = [
        padded[
            :,
            kh * dilations[0] : kh * dilations[0] + strides[0] * (height - 1) + 1 : strides[0],
            kw * dilations[1] : kw * dilations[1] + strides[1] * (width - 1) + 1 : strides[1],
        ]
        for kh, kw in itertools.product(*map(range, kernel))
    ]
    return np.concatenate(taps, axis=-1)
