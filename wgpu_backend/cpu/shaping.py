"""NumPy twins of `wgpu_backend.ops.shape.shaping`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def window(
    x: Array, *, start: Sequence[int], shape: Sequence[int], repeated: bool = False
) -> Array:
    """Window of a tensor that goes on beyond its ends."""
    x = x.reshape((1,) * (len(shape) - x.ndim) + x.shape)
    places = [np.arange(n) + s for n, s in zip(shape, start, strict=True)]
    if repeated:
        wrapped = [p % max(n, 1) for p, n in zip(places, x.shape, strict=True)]
        return x[np.ix_(*wrapped)]
    y = np.zeros(shape, x.dtype)
    inside = [(p >= 0) & (p < n) for p, n in zip(places, x.shape, strict=True)]
    taken = [p[i] for p, i in zip(places, inside, strict=True)]
    y[np.ix_(*inside)] = x[np.ix_(*taken)]
    return y
