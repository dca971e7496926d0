"""NumPy twins of `wgpu_backend.ops.conv.columns`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from wgpu_backend.cpu.convolution import padded_by
from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.conv.extents import Padding


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
