"""NumPy twins of `wgpu_backend.ops.elementwise.arithmetic`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def add(a: Array, b: Array) -> Array:
    """Sum."""
    return a + b


@twin
def sub(a: Array, b: Array) -> Array:
    """Difference."""
    return a - b


@twin
def mul(a: Array, b: Array) -> Array:
    """Product."""
    return a * b


@twin
def div(a: Array, b: Array) -> Array:
    """Quotient."""
    return a / b


@twin
def scale(x: Array, *, factor: float, bias: float = 0.0) -> Array:
    """Multiple and sum with numbers."""
    return x * x.dtype.type(factor) + x.dtype.type(bias)


@twin
def power(a: Array, b: Array) -> Array:
    """Power, by way of f64: NumPy's own of f32 is off by some units where a result is small."""
    if a.dtype.kind in "iu":
        found = np.power(a, np.maximum(b, 0))
        return np.where((b >= 0) | (np.abs(a) == 1), np.where(b < 0, a ** (b & 1), found), 0)
    return a.astype(np.float64) ** b.astype(np.float64)


@twin
def maximum(a: Array, b: Array) -> Array:
    """Larger value."""
    return np.maximum(a, b)


@twin
def minimum(a: Array, b: Array) -> Array:
    """Smaller value."""
    return np.minimum(a, b)
