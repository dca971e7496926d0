"""Transcendental functions of each value: exponentials, logarithms, angles, erf and its inverse.

All are our own, as WGSL leaves drivers much room: within 4 units in the last place of f32, where
nothing else is said, for every number that is not below 2⁻¹²⁶, which devices may take as zero.
"""

from __future__ import annotations

from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.elementwise.activation import unary
from wgpu_backend.ops.elementwise.arithmetic import binary
from wgpu_backend.ops.op import op


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


@op(trusted=True, constants=("a", "b"))
def hypot(a: Node, b: Node) -> Launch:
    """Length of a vector of two values, ``sqrt(a² + b²)``, without overflow; see `atan2`.

    Infinite where one is, even beside NaN.
    """
    return binary("hypot", a, b)


@op(trusted=True, constants=("a", "b"))
def logaddexp(a: Node, b: Node) -> Launch:
    """Logarithm of a sum: ``log(exp(a) + exp(b))``, without overflow on the way; see `atan2`."""
    return binary("logaddexp", a, b)
