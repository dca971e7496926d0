"""NumPy twins of `wgpu_backend.ops.elementwise.transcendental`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from wgpu_backend.cpu.twin import Array, twin

_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])
_erfc: Callable[[Array], Array] = np.vectorize(math.erfc, otypes=[np.float64])


@twin
def expm1(x: Array) -> Array:
    """Exponential less one."""
    return np.expm1(x.astype(np.float64))


@twin
def exp2(x: Array) -> Array:
    """Power of two."""
    return np.exp2(x.astype(np.float64))


@twin
def log1p(x: Array) -> Array:
    """Logarithm of one more."""
    return np.log1p(x.astype(np.float64))


@twin
def log2(x: Array) -> Array:
    """Logarithm to base 2."""
    return np.log2(x.astype(np.float64))


@twin
def log10(x: Array) -> Array:
    """Logarithm to base 10."""
    return np.log10(x.astype(np.float64))


@twin
def tan(x: Array) -> Array:
    """Tangent."""
    return np.tan(x.astype(np.float64))


@twin
def asin(x: Array) -> Array:
    """Angle of a sine."""
    return np.arcsin(x.astype(np.float64))


@twin
def acos(x: Array) -> Array:
    """Angle of a cosine."""
    return np.arccos(x.astype(np.float64))


@twin
def atan(x: Array) -> Array:
    """Angle of a tangent."""
    return np.arctan(x.astype(np.float64))


@twin
def sinh(x: Array) -> Array:
    """Hyperbolic sine."""
    return np.sinh(x.astype(np.float64))


@twin
def cosh(x: Array) -> Array:
    """Hyperbolic cosine."""
    return np.cosh(x.astype(np.float64))


@twin
def asinh(x: Array) -> Array:
    """Inverse of sinh."""
    return np.arcsinh(x.astype(np.float64))


@twin
def acosh(x: Array) -> Array:
    """Inverse of cosh."""
    return np.arccosh(x.astype(np.float64))


@twin
def atanh(x: Array) -> Array:
    """Inverse of tanh."""
    return np.arctanh(x.astype(np.float64))


@twin
def rsqrt(x: Array) -> Array:
    """Inverse of the root; that of -0.0 is -inf."""
    return 1 / np.sqrt(x.astype(np.float64))


@twin
def reciprocal(x: Array) -> Array:
    """Inverse."""
    return 1 / x


@twin
def erf(x: Array) -> Array:
    """Error function."""
    return _erf(x)


@twin
def erfinv(x: Array) -> Array:
    """Inverse of erf by Halley's steps, on the complement where that is small."""
    p = np.abs(x.astype(np.float64))
    q = 1 - p
    small = q < 0.5
    y: Array = np.where(small, np.sqrt(-np.log(np.clip(q, 1e-300, 1))), p)
    for _ in range(12):
        off = np.where(small, q - _erfc(y), _erf(y) - p)
        step = off * np.exp(np.minimum(y * y, 700)) * math.sqrt(math.pi) / 2
        y = y - step / (1 + y * step)
    ends = np.where(p == 1, np.inf, np.where(p > 1, np.nan, y))
    return np.copysign(ends, x)


@twin
def atan2(a: Array, b: Array) -> Array:
    """Angle of a point."""
    return np.arctan2(a.astype(np.float64), b.astype(np.float64))


@twin
def hypot(a: Array, b: Array) -> Array:
    """Length of a vector."""
    return np.hypot(a.astype(np.float64), b.astype(np.float64))


@twin
def logaddexp(a: Array, b: Array) -> Array:
    """Logarithm of a sum of exponentials."""
    return np.logaddexp(a.astype(np.float64), b.astype(np.float64))
