"""NumPy twins of `wgpu_backend.ops.elementwise.division`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def floor_divide(a: Array, b: Array) -> Array:
    """Quotient, rounded down; an infinity by a number is one, where NumPy has NaN."""
    found = np.floor_divide(a, b)
    if a.dtype.kind != "f":
        return found
    return np.where(np.isinf(a) & np.isfinite(b), np.where(np.signbit(b), -a, a), found)


@twin
def remainder(a: Array, b: Array) -> Array:
    """What is left of it."""
    return np.remainder(a, b)
