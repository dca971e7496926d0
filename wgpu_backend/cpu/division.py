"""NumPy twins of `wgpu_backend.ops.elementwise.division`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def floor_divide(a: Array, b: Array) -> Array:
    """Quotient, rounded down."""
    return np.floor_divide(a, b)


@twin
def remainder(a: Array, b: Array) -> Array:
    """What is left of it."""
    return np.remainder(a, b)
