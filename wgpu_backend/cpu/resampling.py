"""NumPy twins of `wgpu_backend.ops.conv.resampling`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def avg_pool2d(x: Array, k: int, s: int, p: int = 0) -> Array:
    """Mean of each window of the padded image."""
    padded = np.pad(x, [*[(0, 0)] * (x.ndim - 2), (p, p), (p, p)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(-2, -1))
    return windows[..., ::s, ::s, :, :].mean(axis=(-2, -1))


@twin
def interpolate(x: Array, shape: Sequence[int], mode: str = "nearest") -> Array:
    """Values by their nearest index, or between two, axis by axis."""
    for axis, want in enumerate(shape):
        have = x.shape[axis]
        if mode == "nearest" or axis < x.ndim - 2:
            x = np.take(x, np.arange(want) * have // want, axis=axis)
            continue
        place = np.maximum((np.arange(want) + 0.5) * have / want - 0.5, 0)
        low = place.astype(np.int64)
        share = (place - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
        high = np.minimum(low + 1, have - 1)
        x = np.take(x, low, axis=axis) * (1 - share) + np.take(x, high, axis=axis) * share
    return x
