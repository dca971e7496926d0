"""Functions of each value: rounding, exponentials, angles, activations, tests of floats.

What is a function of floats converts integers and bools to float32 first.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.conversion import converted, paired, part
from wgpu_backend.array.core import constant, wrap
from wgpu_backend.array.lifting import (
    Kernel,
    as_node,
    floating,
    is_bool,
    is_complex,
    lifted,
    of_complex,
)
from wgpu_backend.array.types import FLOATING, INTEGERS
from wgpu_backend.dtypes import BOOL
from wgpu_backend.errors import DTypeError
from wgpu_backend.ops.elementwise import activation, bitwise, comparison, float_bits, pointwise
from wgpu_backend.ops.elementwise import rounding as roundings
from wgpu_backend.ops.elementwise import transcendental as curves
from wgpu_backend.ops.shape.views import expanded

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Unary = Callable[..., "Array"]


def named(function: Any, name: str, summary: str) -> Any:
    """A function under its name, with its docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = summary
    return function


def of_floats(op: Kernel, name: str, summary: str) -> Unary:
    """Function of one value that is a float: integers are converted to float32."""

    def function(x: Array, /, **options: Any) -> Array:
        node = as_node(name, x)
        if is_complex(node) and not options:
            return of_complex(name, wrap(node))
        return lifted(op, name, floating(node), **options)

    return named(function, name, summary)


def of_numbers(op: Kernel, name: str, summary: str) -> Unary:
    """Function of one value that keeps its type."""

    def function(x: Array, /) -> Array:
        node = as_node(name, x)
        return of_complex(name, wrap(node)) if is_complex(node) else lifted(op, name, node)

    return named(function, name, summary)


def of_fractions(op: Kernel, name: str, summary: str) -> Unary:
    """Function that leaves whole numbers as they are."""

    def function(x: Array, /) -> Array:
        node = as_node(name, x)
        if is_complex(node):
            return of_complex(name, wrap(node))
        kept = node.spec.dtype in INTEGERS or is_bool(node)
        return wrap(node) if kept else lifted(op, name, node)

    return named(function, name, summary)


def of_kind(op: Kernel, name: str, summary: str, *, whole: bool) -> Unary:
    """Test of floats, whose answer is the same for all whole numbers."""

    def function(x: Array, /) -> Array:
        node = as_node(name, x)
        if node.spec.dtype in FLOATING:
            return lifted(op, name, node)
        if is_complex(node):
            return of_complex(name, wrap(node))
        return wrap(expanded(constant(x.session, _truth(whole), BOOL), node.spec.shape))

    return named(function, name, summary)


def _truth(value: bool) -> Any:
    import numpy as np

    return np.asarray(value)


negative = of_numbers(pointwise.neg, "negative", "Value with the other sign.")
square = of_numbers(pointwise.sqr, "square", "Value times itself.")
sign = of_numbers(pointwise.sign, "sign", "-1, 0 or 1; NaN of NaN.")

floor = of_fractions(roundings.floor, "floor", "Largest whole number that is not above.")
ceil = of_fractions(roundings.ceil, "ceil", "Smallest whole number that is not below.")
trunc = of_fractions(roundings.trunc, "trunc", "Value without its fraction.")

exp = of_floats(pointwise.exp, "exp", "Exponential.")
exp2 = of_floats(curves.exp2, "exp2", "Two to the power of the value.")
expm1 = of_floats(curves.expm1, "expm1", "Exponential less 1, exact near 0.")
log = of_floats(pointwise.log, "log", "Natural logarithm; NaN below 0.")
log1p = of_floats(curves.log1p, "log1p", "Logarithm of 1 plus the value, exact near 0.")
log2 = of_floats(curves.log2, "log2", "Logarithm to base 2; NaN below 0.")
log10 = of_floats(curves.log10, "log10", "Logarithm to base 10; NaN below 0.")
sqrt = of_floats(pointwise.sqrt, "sqrt", "Square root; NaN below 0.")
rsqrt = of_floats(curves.rsqrt, "rsqrt", "One over the square root.")
reciprocal = of_floats(curves.reciprocal, "reciprocal", "One over the value.")
sin = of_floats(pointwise.sin, "sin", "Sine of radians.")
cos = of_floats(pointwise.cos, "cos", "Cosine of radians.")
tan = of_floats(curves.tan, "tan", "Tangent of radians.")
asin = of_floats(curves.asin, "asin", "Angle whose sine it is; NaN beyond 1.")
acos = of_floats(curves.acos, "acos", "Angle whose cosine it is; NaN beyond 1.")
atan = of_floats(curves.atan, "atan", "Angle whose tangent it is.")
sinh = of_floats(curves.sinh, "sinh", "Hyperbolic sine.")
cosh = of_floats(curves.cosh, "cosh", "Hyperbolic cosine.")
tanh = of_floats(activation.tanh, "tanh", "Hyperbolic tangent.")
asinh = of_floats(curves.asinh, "asinh", "Number whose hyperbolic sine it is.")
acosh = of_floats(curves.acosh, "acosh", "Number whose hyperbolic cosine it is; NaN below 1.")
atanh = of_floats(curves.atanh, "atanh", "Number whose hyperbolic tangent it is; NaN beyond 1.")
erf = of_floats(curves.erf, "erf", "Error function.")
erfinv = of_floats(curves.erfinv, "erfinv", "Number whose error function it is; NaN beyond 1.")
sigmoid = of_floats(activation.sigmoid, "sigmoid", "Logistic function: 1 / (1 + exp(-x)).")

isnan = of_kind(float_bits.isnan, "isnan", "Whether it is NaN.", whole=False)
isinf = of_kind(float_bits.isinf, "isinf", "Whether it is infinite.", whole=False)
isfinite = of_kind(float_bits.isfinite, "isfinite", "Whether it is a number.", whole=True)
signbit = of_floats(float_bits.signbit, "signbit", "Whether a float has the sign, -0.0 too.")


arcsin, arccos, arctan = asin, acos, atan  # as MLX and NumPy spell them
arcsinh, arccosh, arctanh = asinh, acosh, atanh


def isposinf(x: Array, /) -> Array:
    """Whether it is infinite and above 0."""
    return isinf(x) & (x > 0)


def isneginf(x: Array, /) -> Array:
    """Whether it is infinite and below 0."""
    return isinf(x) & (x < 0)


def logical_not(x: Array, /) -> Array:
    """Whether it is false, or 0."""
    return lifted(comparison.logical_not, "logical_not", converted(as_node("logical_not", x), BOOL))


def bitwise_invert(x: Array, /) -> Array:
    """Bits that an integer does not have; of bools, the other one."""
    node = as_node("bitwise_invert", x)
    if node.spec.dtype not in INTEGERS and not is_bool(node):
        raise DTypeError(f"bitwise_invert: {node.spec.dtype}, needs integers or bool")
    return lifted(bitwise.bitwise_not, "bitwise_invert", node)


bitwise_not = bitwise_invert


def positive(x: Array, /) -> Array:
    """The value itself."""
    return wrap(as_node("positive", x))


def stop_gradient(x: Array, /) -> Array:
    """The array itself: nothing here is differentiated."""
    return wrap(as_node("stop_gradient", x))


def abs(x: Array, /) -> Array:
    """Value without its sign; of complex numbers their length, float32."""
    node = as_node("abs", x)
    if is_complex(node):
        return of_complex("abs", wrap(node))
    signed = node.spec.dtype.numpy is not None and node.spec.dtype.numpy.kind in "if"
    if not signed and node.spec.dtype not in FLOATING:
        return wrap(node)
    return lifted(pointwise.abs, "abs", node)


def round(x: Array, /, decimals: int = 0) -> Array:
    """Nearest number of so many decimals, the even one of two."""
    node = as_node("round", x)
    if node.spec.dtype in INTEGERS or is_bool(node):
        if decimals < 0:
            raise DTypeError(f"round: {decimals} decimals of {node.spec.dtype}, needs floats")
        return wrap(node)
    if is_complex(node):
        return wrap(paired(*(round(p(x), decimals).node for p in (real, imag))))
    if not decimals:
        return lifted(roundings.round, "round", node)
    scale = 10.0 ** builtins.abs(decimals)
    if decimals > 0:
        return round(x * scale) / scale
    return round(x / scale) * scale


def degrees(x: Array, /) -> Array:
    """Radians as degrees."""
    return wrap(floating(as_node("degrees", x))) * (180 / math.pi)


def radians(x: Array, /) -> Array:
    """Degrees as radians."""
    return wrap(floating(as_node("radians", x))) * (math.pi / 180)


def conj(x: Array, /) -> Array:
    """Complex conjugate; real numbers as they are."""
    node = as_node("conj", x)
    return wrap(paired(part(node, 0), negative(imag(x)).node) if is_complex(node) else node)


conjugate = conj


def real(x: Array, /) -> Array:
    """View of real parts, float32; real numbers as they are."""
    node = as_node("real", x)
    return wrap(part(node, 0) if is_complex(node) else node)


def imag(x: Array, /) -> Array:
    """View of imaginary parts, float32."""
    node = as_node("imag", x)
    if not is_complex(node):
        raise DTypeError(f"imag: {node.spec.dtype}, needs complex64")
    return wrap(part(node, 1))
