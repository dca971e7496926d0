"""NumPy twins of `wgpu_backend.ops.index.accumulating` and its `compacting`."""

from __future__ import annotations

import math

import numpy as np

from wgpu_backend.cpu.reduction import kind_of
from wgpu_backend.cpu.scan import JOINS
from wgpu_backend.cpu.twin import Array, twin


@twin
def fold_sorted(
    dst: Array, x: Array, ids: Array, order: Array, *, axis: int, kind: str, along: bool
) -> Array:
    """Fold values one after the other."""
    extent = dst.shape[axis]
    lines = np.moveaxis(dst.astype(kind_of(dst.dtype)), axis, -1)
    given = np.moveaxis(x.astype(lines.dtype), axis, -1)
    y = lines.reshape(math.prod(lines.shape[:-1]), extent).copy()
    values = given.reshape(len(y), ids.shape[-1])
    own, places = (np.broadcast_to(given, values.shape) for given in (ids, order))
    wrapped = np.where(own < 0, own.astype(np.int64) + extent, own)
    inside = (wrapped >= 0) & (wrapped < extent)
    row = np.broadcast_to(np.arange(len(y))[:, None], values.shape)
    taken = np.take_along_axis(values, places, 1) if values.size else values
    with np.errstate(all="ignore"):
        JOINS[kind].at(y, (row[inside], wrapped[inside]), taken[inside])
    return np.moveaxis(y.reshape(lines.shape), -1, axis)


@twin
def compact_by(mask: Array, ends: Array, *, count: int) -> Array:
    """Places of what is true."""
    found = np.flatnonzero(mask)[:count]
    return np.pad(found, (0, count - len(found)))
