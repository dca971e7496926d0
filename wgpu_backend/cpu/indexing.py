"""NumPy twins of `wgpu_backend.ops.index.indexing`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def rows(x: Array, ids: Array) -> Array:
    """Gather rows."""
    if x.ndim > 2:
        return np.take_along_axis(x, np.clip(ids, 0, x.shape[-2] - 1)[..., None], axis=-2)
    return x[np.clip(ids, 0, len(x) - 1)]


@twin
def set_rows(dst: Array, x: Array, ids: Array) -> Array:
    """Scatter rows into `dst`; ids outside it are dropped."""
    if dst.ndim > 2:
        of_each = np.broadcast_to(ids, x.shape[:-1])
        for batch in np.ndindex(x.shape[:-2]):
            set_rows(dst[batch], x[batch], of_each[batch])
        return dst
    inside = (ids >= 0) & (ids < len(dst))
    dst[ids[inside]] = x[inside]
    return dst


@twin
def argmax(x: Array) -> Array:
    """Index of the largest value of each row."""
    return np.argmax(x, axis=-1)
