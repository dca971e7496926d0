"""NumPy twin of `wgpu_backend.ops.conv.resizing`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def resample(x: Array, table: Array, *, axis: int) -> Array:
    """Neighbours times their weights, one after the other; what weighs nothing is left out."""
    ones = (1,) * (x.ndim - 1 - axis)
    first, last = table[:, 0].astype(np.int64), x.shape[axis] - 1
    y = np.zeros((*x.shape[:axis], len(table), *x.shape[axis + 1 :]))
    for k in range(table.shape[1] - 1):
        weights = table[:, 1 + k].reshape(-1, *ones)
        seen = np.take(x, np.minimum(first + k, last), axis=axis)
        y += np.where(weights == 0, 0, seen) * weights
    return y
