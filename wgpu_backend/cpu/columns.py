"""NumPy twins of `wgpu_backend.ops.conv.columns`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from wgpu_backend.cpu.convolution import padded_by
from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.conv.extents import Padding, padded_sides


@twin
def im2col(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    dilations: Sequence[int] = (1, 1),
) -> Array:
    """Shifted pixels, a tap after the other."""
    padded = padded_by(x, paddings)
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


@twin
def col2im(
    x: Array,
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    dilations: Sequence[int] = (1, 1),
) -> Array:
    """Columns added where they were taken from."""
    sides = padded_sides(paddings)
    batch, height, width, _ = x.shape
    taps = x.reshape(batch, height, width, *kernel, -1)
    # Windows never look beyond the padding; what is cut off at a side they do not see.
    whole = [n + max(a, 0) + max(b, 0) for n, (a, b) in zip(shape, sides, strict=True)]
    cut = [max(-a, 0) for a, _ in sides]
    y = np.zeros((batch, *whole, taps.shape[-1]), np.float32)
    for kh, kw in itertools.product(*map(range, kernel)):
        top, left = cut[0] + kh * dilations[0], cut[1] + kw * dilations[1]
        rows = slice(top, top + strides[0] * (height - 1) + 1, strides[0])
        cols = slice(left, left + strides[1] * (width - 1) + 1, strides[1])
        y[:, rows, cols] += taps[:, :, :, kh, kw]
    top, left = max(sides[0][0], 0), max(sides[1][0], 0)
    return y[:, top : top + shape[0], left : left + shape[1]]
