"""NumPy twins of `wgpu_backend.ops.elementwise.pointwise`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def sqr(x: Array) -> Array:
    """Square."""
    return x * x


@twin
def sqrt(x: Array) -> Array:
    """Square root."""
    return np.sqrt(x)


@twin
def exp(x: Array) -> Array:
    """Exponential."""
    return np.exp(x)


@twin
def neg(x: Array) -> Array:
    """Value with the other sign."""
    return -x


@twin
def sin(x: Array) -> Array:
    """Sine."""
    return np.sin(x.astype(np.float64))


@twin
def cos(x: Array) -> Array:
    """Cosine."""
    return np.cos(x.astype(np.float64))


@twin
def softplus(x: Array) -> Array:
    """Smooth form of relu."""
    return np.logaddexp(x, x.dtype.type(0))


@twin
def clamp(x: Array, low: float, high: float) -> Array:
    """Value within bounds."""
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        low, high = (min(max(bound, info.min), info.max) for bound in (low, high))
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


@twin
def fill(x: Array, value: float) -> Array:
    """One value everywhere."""
    return np.full(x.shape, value, x.dtype)


@twin
def log(x: Array) -> Array:
    """Natural logarithm."""
    return np.log(x)


@twin
def abs(x: Array) -> Array:
    """Value without its sign."""
    return np.abs(x)


@twin
def sign(x: Array) -> Array:
    """Sign as a number."""
    return np.sign(x)
