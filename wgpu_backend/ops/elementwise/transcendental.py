"""Transcendental functions of each value: exponentials, logarithms, angles, erf and its inverse.

All are our own, as WGSL leaves drivers much room: within 4 units in the last place of f32, where
nothing else is said, for every number that is not below 2⁻¹²⁶, which devices may take as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.elementwise.activation import unary
from wgpu_backend.ops.elementwise.arithmetic import binary
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(trusted=True)
def expm1(x: Node) -> Launch:
    """Exponential less one: ``exp(x) - 1``, without cancellation near zero.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("expm1", x)


@expm1.reference
def expm1_reference(x: Array) -> Array:
    """Exponential less one."""
    return np.expm1(x.astype(np.float64))


@op(trusted=True)
def exp2(x: Node) -> Launch:
    """Power of two: ``2 ** x``, exact for whole `x`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("exp2", x)


@exp2.reference
def exp2_reference(x: Array) -> Array:
    """Power of two."""
    return np.exp2(x.astype(np.float64))


@op(trusted=True)
def log1p(x: Node) -> Launch:
    """Logarithm of one more: ``log(1 + x)``, without cancellation near zero.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense; -inf at -1, NaN below.
    """
    return unary("log1p", x)


@log1p.reference
def log1p_reference(x: Array) -> Array:
    """Logarithm of one more."""
    return np.log1p(x.astype(np.float64))


@op(trusted=True)
def log2(x: Node) -> Launch:
    """Logarithm to base 2, exact for powers of two.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense; -inf where `x` is zero, NaN below.
    """
    return unary("log2", x)


@log2.reference
def log2_reference(x: Array) -> Array:
    """Logarithm to base 2."""
    return np.log2(x.astype(np.float64))


@op(trusted=True)
def log10(x: Node) -> Launch:
    """Logarithm to base 10.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense; -inf where `x` is zero, NaN below.
    """
    return unary("log10", x)


@log10.reference
def log10_reference(x: Array) -> Array:
    """Logarithm to base 10."""
    return np.log10(x.astype(np.float64))


@op(trusted=True)
def rsqrt(x: Node) -> Launch:
    """Inverse of the square root: ``1 / sqrt(x)``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense; infinite where `x` is zero, with its sign; NaN below.
    """
    return unary("rsqrt", x)


@rsqrt.reference
def rsqrt_reference(x: Array) -> Array:
    """Inverse of the root; that of -0.0 is -inf."""
    return 1 / np.sqrt(x.astype(np.float64))


@op(trusted=True)
def reciprocal(x: Node) -> Launch:
    """Inverse: ``1 / x``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense; infinite where `x` is zero, with its sign.
    """
    return unary("reciprocal", x)


@reciprocal.reference
def reciprocal_reference(x: Array) -> Array:
    """Inverse."""
    return 1 / x


@op(trusted=True)
def tan(x: Node) -> Launch:
    """Tangent.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
        Radians.

    Returns
    -------
    Like `x`, dense; NaN where `x` is infinite.
    """
    return unary("tan", x)


@tan.reference
def tan_reference(x: Array) -> Array:
    """Tangent."""
    return np.tan(x.astype(np.float64))


@op(trusted=True)
def asin(x: Node) -> Launch:
    """Angle whose sine is given.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense: radians from -π/2 to π/2; NaN beyond ±1.
    """
    return unary("asin", x)


@asin.reference
def asin_reference(x: Array) -> Array:
    """Angle of a sine."""
    return np.arcsin(x.astype(np.float64))


@op(trusted=True)
def acos(x: Node) -> Launch:
    """Angle whose cosine is given.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense: radians from 0 to π; NaN beyond ±1.
    """
    return unary("acos", x)


@acos.reference
def acos_reference(x: Array) -> Array:
    """Angle of a cosine."""
    return np.arccos(x.astype(np.float64))


@op(trusted=True)
def atan(x: Node) -> Launch:
    """Angle whose tangent is given.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense: radians from -π/2 to π/2.
    """
    return unary("atan", x)


@atan.reference
def atan_reference(x: Array) -> Array:
    """Angle of a tangent."""
    return np.arctan(x.astype(np.float64))


@op(trusted=True)
def sinh(x: Node) -> Launch:
    """Hyperbolic sine: ``(exp(x) - exp(-x)) / 2``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("sinh", x)


@sinh.reference
def sinh_reference(x: Array) -> Array:
    """Hyperbolic sine."""
    return np.sinh(x.astype(np.float64))


@op(trusted=True)
def cosh(x: Node) -> Launch:
    """Hyperbolic cosine: ``(exp(x) + exp(-x)) / 2``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("cosh", x)


@cosh.reference
def cosh_reference(x: Array) -> Array:
    """Hyperbolic cosine."""
    return np.cosh(x.astype(np.float64))


@op(trusted=True)
def asinh(x: Node) -> Launch:
    """Number whose hyperbolic sine is given.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("asinh", x)


@asinh.reference
def asinh_reference(x: Array) -> Array:
    """Inverse of sinh."""
    return np.arcsinh(x.astype(np.float64))


@op(trusted=True)
def acosh(x: Node) -> Launch:
    """Number whose hyperbolic cosine is given.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense: from 0 on; NaN where `x` is below 1.
    """
    return unary("acosh", x)


@acosh.reference
def acosh_reference(x: Array) -> Array:
    """Inverse of cosh."""
    return np.arccosh(x.astype(np.float64))


@op(trusted=True)
def atanh(x: Node) -> Launch:
    """Number whose hyperbolic tangent is given.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense; infinite at ±1, NaN beyond.
    """
    return unary("atanh", x)


@atanh.reference
def atanh_reference(x: Array) -> Array:
    """Inverse of tanh."""
    return np.arctanh(x.astype(np.float64))


@op(trusted=True)
def erf(x: Node) -> Launch:
    """Error function: ``2 / sqrt(π)`` times the integral of ``exp(-t²)`` from 0 to `x`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("erf", x)


@erf.reference
def erf_reference(x: Array) -> Array:
    """Error function."""
    return _erf(x)


@op(trusted=True)
def erfinv(x: Node) -> Launch:
    """Number whose error function is given.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense; infinite at ±1, NaN beyond.
    """
    return unary("erfinv", x)


@erfinv.reference
def erfinv_reference(x: Array) -> Array:
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


@op(trusted=True, constants=("a", "b"))
def atan2(a: Node, b: Node) -> Launch:
    """Angle of a point whose second coordinate is `a` and first is `b`, as C's ``atan2(a, b)``.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast
        One may be a number or an array.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`: radians from -π to π, with the sign of `a`.
    """
    return binary("atan2", a, b)


@atan2.reference
def atan2_reference(a: Array, b: Array) -> Array:
    """Angle of a point."""
    return np.arctan2(a.astype(np.float64), b.astype(np.float64))


@op(trusted=True, constants=("a", "b"))
def hypot(a: Node, b: Node) -> Launch:
    """Length of a vector of two values, ``sqrt(a² + b²)``, without overflow; see `atan2`.

    Infinite where one is, even beside NaN.
    """
    return binary("hypot", a, b)


@hypot.reference
def hypot_reference(a: Array, b: Array) -> Array:
    """Length of a vector."""
    return np.hypot(a.astype(np.float64), b.astype(np.float64))


@op(trusted=True, constants=("a", "b"))
def logaddexp(a: Node, b: Node) -> Launch:
    """Logarithm of a sum: ``log(exp(a) + exp(b))``, without overflow on the way; see `atan2`."""
    return binary("logaddexp", a, b)


@logaddexp.reference
def logaddexp_reference(a: Array, b: Array) -> Array:
    """Logarithm of a sum of exponentials."""
    return np.logaddexp(a.astype(np.float64), b.astype(np.float64))


_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])
_erfc: Callable[[Array], Array] = np.vectorize(math.erfc, otypes=[np.float64])
