"""Transcendental functions of each value: exponentials, logarithms, angles, erf and its inverse.

WGSL allows drivers large errors, so all functions are computed by our own formulas. They are
within 4 units in the last place of f32, unless their documentation gives another figure, for all
numbers that are not below 2⁻¹²⁶, which devices may take as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from wgpu_backend.ops.elementwise.makers import binary_op, in_f64, unary_op
from wgpu_backend.ops.reference import Array

# NumPy has no error function.
_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])
_erfc: Callable[[Array], Array] = np.vectorize(math.erfc, otypes=[np.float64])


def erfinv_reference(x: Array) -> Array:
    """Invert erf by Halley's steps, on the complement where that is small."""
    p = np.abs(x.astype(np.float64))
    q = 1 - p
    # Near 1, the complement keeps digits that erf loses.
    small = q < 0.5
    y: Array = np.where(small, np.sqrt(-np.log(np.clip(q, 1e-300, 1))), p)
    # Each step triples the digits, so that 12 are enough for f64.
    for _ in range(12):
        off = np.where(small, q - _erfc(y), _erf(y) - p)
        step = off * np.exp(np.minimum(y * y, 700)) * math.sqrt(math.pi) / 2
        y = y - step / (1 + y * step)
    ends = np.where(p == 1, np.inf, np.where(p > 1, np.nan, y))
    return np.copysign(ends, x)


_LOG_ENDS = "It is -inf of zero and NaN below."

exp = unary_op("exp", np.exp, "Return the exponential.")
exp2 = unary_op("exp2", in_f64(np.exp2), "Return ``2 ** x``, exact for whole `x`.")
expm1 = unary_op(
    "expm1", in_f64(np.expm1), "Return ``exp(x) - 1``, without cancellation near zero."
)
log = unary_op("log", np.log, "Return the natural logarithm.", _LOG_ENDS)
log1p = unary_op(
    "log1p",
    in_f64(np.log1p),
    "Return ``log(1 + x)``, without cancellation near zero.",
    "It is -inf at -1 and NaN below.",
)
log2 = unary_op(
    "log2", in_f64(np.log2), "Return the logarithm to base 2, exact for powers of two.", _LOG_ENDS
)
log10 = unary_op("log10", in_f64(np.log10), "Return the logarithm to base 10.", _LOG_ENDS)

sin = unary_op(
    "sin",
    in_f64(np.sin),
    "Return the sine of radians, within some 1e-7 for every f32 angle.",
    "It is NaN where `x` is infinite.",
)
cos = unary_op(
    "cos",
    in_f64(np.cos),
    "Return the cosine of radians, within some 1e-7 for every f32 angle.",
    "It is NaN where `x` is infinite.",
)
tan = unary_op(
    "tan", in_f64(np.tan), "Return the tangent of radians.", "It is NaN where `x` is infinite."
)
asin = unary_op(
    "asin",
    in_f64(np.arcsin),
    "Return the angle from -π/2 to π/2 whose sine is `x`, in radians; NaN beyond ±1.",
)
acos = unary_op(
    "acos",
    in_f64(np.arccos),
    "Return the angle from 0 to π whose cosine is `x`, in radians; NaN beyond ±1.",
)
atan = unary_op(
    "atan",
    in_f64(np.arctan),
    "Return the angle from -π/2 to π/2 whose tangent is `x`, in radians.",
)
sinh = unary_op("sinh", in_f64(np.sinh), "Return the hyperbolic sine: ``(exp(x) - exp(-x)) / 2``.")
cosh = unary_op(
    "cosh", in_f64(np.cosh), "Return the hyperbolic cosine: ``(exp(x) + exp(-x)) / 2``."
)
asinh = unary_op("asinh", in_f64(np.arcsinh), "Return the number whose hyperbolic sine is `x`.")
acosh = unary_op(
    "acosh",
    in_f64(np.arccosh),
    "Return the number from 0 on whose hyperbolic cosine is `x`; NaN below 1.",
)
atanh = unary_op(
    "atanh",
    in_f64(np.arctanh),
    "Return the number whose hyperbolic tangent is `x`.",
    "It is infinite at ±1 and NaN beyond.",
)
erf = unary_op(
    "erf",
    _erf,
    "Return the error function: ``2 / sqrt(π)`` times the integral of ``exp(-t²)`` from 0 to `x`.",
)
erfinv = unary_op(
    "erfinv",
    erfinv_reference,
    "Return the number whose error function is `x`.",
    "It is infinite at ±1 and NaN beyond.",
)

atan2 = binary_op(
    "atan2",
    in_f64(np.arctan2),
    "Return the angle of the point (b, a), as C's ``atan2(a, b)``.",
    "It is in radians from -π to π, with the sign of `a`.",
)
hypot = binary_op(
    "hypot",
    in_f64(np.hypot),
    "Return the length of the vector (a, b), ``sqrt(a² + b²)``, without overflow.",
    "It is infinite if one is infinite, even if the other is NaN.",
)
logaddexp = binary_op(
    "logaddexp",
    in_f64(np.logaddexp),
    "Return ``log(exp(a) + exp(b))``, without overflow of the exponentials.",
)
