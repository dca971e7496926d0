"""NumPy twins of `wgpu_backend.ops.index.scatter`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def put_at(dst: Array, x: Array, *ids: Array, axes: Sequence[int], window: Sequence[int]) -> Array:
    """Write windows where ids say."""
    values = x.reshape(len(x), *window)
    for k, offsets in itertools.product(range(len(x)), np.ndindex(*window)):
        at = list(offsets)
        for axis, places in zip(axes, ids, strict=True):
            start = int(places[k]) + (dst.shape[axis] if places[k] < 0 else 0)
            at[axis] += start if 0 <= start < dst.shape[axis] else dst.shape[axis]
        if all(a < n for a, n in zip(at, dst.shape, strict=True)):
            dst[tuple(at)] = values[k][offsets]
    return dst


@twin
def put_along(dst: Array, x: Array, ids: Array, *, axis: int) -> Array:
    """Write values where ids say, an id for each."""
    for at in np.ndindex(*ids.shape):
        extent = dst.shape[axis]
        place = int(ids[at]) + (extent if ids[at] < 0 else 0)
        if 0 <= place < extent:
            dst[(*at[:axis], place, *at[axis + 1 :])] = x[at]
    return dst
