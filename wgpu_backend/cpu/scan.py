"""NumPy twins of `wgpu_backend.ops.reduce.scan`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin

BLOCK = 1024


@twin
def scan(x: Array, carry: Array | None = None) -> Array:
    """Running sums of blocks of each row."""
    whole = x.astype(np.int32 if x.dtype == np.int32 else np.float64)
    y = np.empty_like(whole)
    for block, start in enumerate(range(0, x.shape[1], BLOCK)):
        part = np.cumsum(whole[:, start : start + BLOCK], axis=1, dtype=whole.dtype)
        before = 0 if block == 0 or carry is None else carry[:, block - 1 : block]
        y[:, start : start + BLOCK] = part + before
    return y
