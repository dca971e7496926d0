"""NumPy twins of `wgpu_backend.ops.indexing`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def rows(x: Array, ids: Array) -> Array:
    """Gather rows."""
    return x[np.clip(ids, 0, len(x) - 1)]


@twin
def set_rows(dst: Array, x: Array, ids: Array) -> Array:
    """Scatter rows into `dst`; ids outside it are dropped."""
    inside = (ids >= 0) & (ids < len(dst))
    dst[ids[inside]] = x[inside]
    return dst


@twin
def argmax(x: Array) -> Array:
    """Index of the largest value of each row."""
    return np.argmax(x, axis=-1)
