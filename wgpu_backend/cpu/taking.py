"""NumPy twins of `wgpu_backend.ops.index.taking`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def take_axes(x: Array, ids: Array, axis: int) -> Array:
    """Gather along an axis; 0 for ids outside."""
    axis %= x.ndim
    extent = x.shape[axis]
    whole = np.concatenate([x, np.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)], axis)
    return np.take(whole, _inside(ids, extent), axis)


@twin
def take_along_axis(x: Array, ids: Array, axis: int) -> Array:
    """Gather along an axis with an id for every value."""
    extent = x.shape[axis]
    pad = [(0, int(a == axis % x.ndim)) for a in range(x.ndim)]
    return np.take_along_axis(np.pad(x, pad), _inside(ids, extent), axis)


def _inside(ids: Array, extent: int) -> Array:
    """Ids counted from the front, `extent` for those outside."""
    wrapped = np.where(ids < 0, ids.astype(np.int64) + extent, ids)
    return np.where((wrapped >= 0) & (wrapped < extent), wrapped, extent)
