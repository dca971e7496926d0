"""NumPy twins of `wgpu_backend.ops.elementwise.rounding`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def floor(x: Array) -> Array:
    """Whole number not above."""
    return np.floor(x)


@twin
def ceil(x: Array) -> Array:
    """Whole number not below."""
    return np.ceil(x)


@twin
def trunc(x: Array) -> Array:
    """Without the fraction."""
    return np.trunc(x)


@twin
def round(x: Array) -> Array:
    """Nearest whole number."""
    return np.rint(x)
