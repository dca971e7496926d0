"""NumPy twins of `wgpu_backend.ops.conv.pooling`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def pool(
    x: Array,
    *,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[tuple[int, int]],
    count_padding: bool = True,
) -> Array:
    """Largest value, or mean, of each window of the padded tensor."""
    beyond = -np.inf if kind == "max" else 0
    windows = _windows(x.astype(np.float32), kernel, strides, paddings, beyond)
    if kind == "max":
        return windows.max(axis=(-3, -2, -1))
    ones = _windows(np.ones_like(x, np.float32), kernel, strides, paddings, float(count_padding))
    counts = ones.sum(axis=(-3, -2, -1))
    return windows.sum(axis=(-3, -2, -1)) / np.maximum(counts, 1)


def _windows(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[tuple[int, int]],
    beyond: float,
) -> Array:
    padded = np.pad(x, [(0, 0), *paddings, (0, 0)], constant_values=beyond)
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(1, 2, 3))
    return windows[:, *(slice(None, None, s) for s in strides)]
