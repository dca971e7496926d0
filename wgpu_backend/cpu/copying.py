"""NumPy twins of `wgpu_backend.ops.shape.copying`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.dtypes import BF16, BOOL, DType
from wgpu_backend.ops.host_values import whole


@twin
def contiguous(x: Array) -> Array:
    """Return a dense copy."""
    return np.asarray(x, order="C")


@twin
def flip(x: Array, *, axes: int | Sequence[int] | None = None) -> Array:
    """Reverse axes."""
    return np.flip(x, axes if axes is None or isinstance(axes, int) else tuple(axes))


@twin
def cast(x: Array, *, dtype: DType) -> Array:
    """Values by way of what they are in a register of a device, which floats leave as f32."""
    if dtype.numpy is None or x.dtype in (dtype.numpy, np.complex64):
        return x
    to_float = dtype == BF16 or dtype.numpy.kind in "fc"
    if to_float or x.dtype.kind == "f":
        x = x.astype(np.float32)
    if dtype == BOOL:
        return x != 0
    return x if to_float else whole(x, dtype.numpy)


@twin
def concat(a: Array, b: Array, *, axis: int) -> Array:
    """Join along an axis."""
    return np.concatenate([a, b], axis=axis)
