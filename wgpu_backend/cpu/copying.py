"""NumPy twins of `wgpu_backend.ops.copying`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.dtypes import DType


@twin
def contiguous(x: Array) -> Array:
    """Return a dense copy."""
    return np.ascontiguousarray(x)


@twin
def cast(x: Array, *, dtype: DType) -> Array:
    """Return the values; the executor converts them to the dtype of the result."""
    return x


@twin
def concat(a: Array, b: Array, *, axis: int) -> Array:
    """Join along an axis."""
    return np.concatenate([a, b], axis=axis)
