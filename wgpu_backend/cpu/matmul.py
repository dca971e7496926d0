"""NumPy twins of `wgpu_backend.ops.matmul`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def mulmat(weight: Array, x: Array) -> Array:
    """Return ``x @ weight.T``, batches of `weight` repeated to those of `x`."""
    for axis in range(weight.ndim - 2):
        at = axis + x.ndim - weight.ndim
        weight = np.repeat(weight, x.shape[at] // weight.shape[axis], axis=axis)
    return np.matmul(x, np.swapaxes(weight, -1, -2))
