"""Functions of each value: rounding, exponentials, angles, activations, tests of floats.

Functions of floats convert integers and bools to float32 first.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.base import constant, wrap
from wgpu_backend.array.conversion import convert, join_parts, view_part
from wgpu_backend.array.promotion import (
    apply_op,
    as_node,
    call_complex,
    is_bool,
    is_complex,
    to_floats,
)
from wgpu_backend.array.types import FLOATING, INTEGERS
from wgpu_backend.dtypes import BOOL
from wgpu_backend.errors import DTypeError
from wgpu_backend.ops.elementwise import (
    activation,
    arithmetic,
    bitwise,
    comparison,
    float_bits,
    rounding,
    transcendental,
)
from wgpu_backend.ops.op import Op
from wgpu_backend.ops.shape.views import expand

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Unary = Callable[..., "Array"]


def describe(function: Any, op: Op[...], name: str, summary: str) -> Any:
    """Give a function a name and a docstring: those of its op where they are left out."""
    function.__name__ = function.__qualname__ = name or op.name
    function.__doc__ = summary or (op.__doc__ or "").partition("\n")[0]
    return function


def float_function(op: Op[...], name: str = "", summary: str = "") -> Unary:
    """Make a function of one value that converts integers and bools to float32."""
    name = name or op.name

    def function(x: Array, /, **options: Any) -> Array:
        node = as_node(name, x)
        # Options are those of activations, which complex numbers do not have.
        if is_complex(node) and not options:
            return call_complex(name, wrap(node))
        return apply_op(op, name, to_floats(node), **options)

    return describe(function, op, name, summary)


def number_function(op: Op[...], name: str = "", summary: str = "") -> Unary:
    """Make a function of one value that keeps its type."""
    name = name or op.name

    def function(x: Array, /) -> Array:
        node = as_node(name, x)
        return call_complex(name, wrap(node)) if is_complex(node) else apply_op(op, name, node)

    return describe(function, op, name, summary)


def fraction_function(op: Op[...]) -> Unary:
    """Make a function that leaves integers and bools as they are."""

    def function(x: Array, /) -> Array:
        node = as_node(op.name, x)
        if is_complex(node):
            return call_complex(op.name, wrap(node))
        kept = node.spec.dtype in INTEGERS or is_bool(node)
        return wrap(node) if kept else apply_op(op, op.name, node)

    return describe(function, op, "", "")


def float_test(op: Op[...], *, whole: bool) -> Unary:
    """Make a test of floats, whose result is `whole` for integers and bools."""

    def function(x: Array, /) -> Array:
        node = as_node(op.name, x)
        if node.spec.dtype in FLOATING:
            return apply_op(op, op.name, node)
        if is_complex(node):
            return call_complex(op.name, wrap(node))
        return wrap(expand(constant(x.session, _truth(whole), BOOL), node.spec.shape))

    return describe(function, op, "", "")


def _truth(value: bool) -> Any:
    import numpy as np

    return np.asarray(value)


negative = number_function(arithmetic.neg, "negative")
square = number_function(arithmetic.sqr, "square")
sign = number_function(arithmetic.sign)

floor = fraction_function(rounding.floor)
ceil = fraction_function(rounding.ceil)
trunc = fraction_function(rounding.trunc)

exp = float_function(transcendental.exp)
exp2 = float_function(transcendental.exp2)
expm1 = float_function(transcendental.expm1)
log = float_function(transcendental.log)
log1p = float_function(transcendental.log1p)
log2 = float_function(transcendental.log2)
log10 = float_function(transcendental.log10)
sqrt = float_function(arithmetic.sqrt)
rsqrt = float_function(arithmetic.rsqrt)
reciprocal = float_function(arithmetic.reciprocal)
sin = float_function(transcendental.sin)
cos = float_function(transcendental.cos)
tan = float_function(transcendental.tan)
asin = float_function(transcendental.asin)
acos = float_function(transcendental.acos)
atan = float_function(transcendental.atan)
sinh = float_function(transcendental.sinh)
cosh = float_function(transcendental.cosh)
tanh = float_function(activation.tanh)
asinh = float_function(transcendental.asinh)
acosh = float_function(transcendental.acosh)
atanh = float_function(transcendental.atanh)
erf = float_function(transcendental.erf)
erfinv = float_function(transcendental.erfinv)
sigmoid = float_function(activation.sigmoid)

isnan = float_test(float_bits.isnan, whole=False)
isinf = float_test(float_bits.isinf, whole=False)
isfinite = float_test(float_bits.isfinite, whole=True)
signbit = float_function(float_bits.signbit)


# Spellings of MLX and NumPy.
arcsin, arccos, arctan = asin, acos, atan
arcsinh, arccosh, arctanh = asinh, acosh, atanh


def isposinf(x: Array, /) -> Array:
    """Return whether each value is infinite and above 0."""
    return isinf(x) & (x > 0)


def isneginf(x: Array, /) -> Array:
    """Return whether each value is infinite and below 0."""
    return isinf(x) & (x < 0)


def logical_not(x: Array, /) -> Array:
    """Return whether each value is false, or 0."""
    return apply_op(comparison.logical_not, "logical_not", convert(as_node("logical_not", x), BOOL))


def bitwise_invert(x: Array, /) -> Array:
    """Invert all bits of integers; negate bools."""
    node = as_node("bitwise_invert", x)
    if node.spec.dtype not in INTEGERS and not is_bool(node):
        raise DTypeError(f"bitwise_invert: {node.spec.dtype}, needs integers or bool")
    return apply_op(bitwise.bitwise_not, "bitwise_invert", node)


bitwise_not = bitwise_invert


def positive(x: Array, /) -> Array:
    """Return the values themselves."""
    return wrap(as_node("positive", x))


def stop_gradient(x: Array, /) -> Array:
    """Return the array itself: nothing here is differentiated."""
    return wrap(as_node("stop_gradient", x))


def abs(x: Array, /) -> Array:
    """Return values without their signs; of complex numbers their lengths, float32."""
    node = as_node("abs", x)
    if is_complex(node):
        return call_complex("abs", wrap(node))
    # Unsigned integers and bools are their own absolute values.
    signed = node.spec.dtype.numpy is not None and node.spec.dtype.numpy.kind in "if"
    if not signed and node.spec.dtype not in FLOATING:
        return wrap(node)
    return apply_op(arithmetic.abs, "abs", node)


def round(x: Array, /, decimals: int = 0) -> Array:
    """Round to `decimals` decimals, halfway cases to even."""
    node = as_node("round", x)
    if node.spec.dtype in INTEGERS or is_bool(node):
        if decimals < 0:
            raise DTypeError(f"round: {decimals} decimals of {node.spec.dtype}, needs floats")
        return wrap(node)
    if is_complex(node):
        return wrap(join_parts(*(round(p(x), decimals).node for p in (real, imag))))
    if not decimals:
        return apply_op(rounding.round, "round", node)
    # Powers of ten with exponents below 0 are not exact: divide instead.
    scale = 10.0 ** builtins.abs(decimals)
    if decimals > 0:
        return round(x * scale) / scale
    return round(x / scale) * scale


def degrees(x: Array, /) -> Array:
    """Convert radians to degrees."""
    return wrap(to_floats(as_node("degrees", x))) * (180 / math.pi)


def radians(x: Array, /) -> Array:
    """Convert degrees to radians."""
    return wrap(to_floats(as_node("radians", x))) * (math.pi / 180)


def conj(x: Array, /) -> Array:
    """Return the complex conjugate; real numbers as they are."""
    node = as_node("conj", x)
    return wrap(
        join_parts(view_part(node, 0), negative(imag(x)).node) if is_complex(node) else node
    )


conjugate = conj


def real(x: Array, /) -> Array:
    """Return a view of real parts, float32; real numbers as they are."""
    node = as_node("real", x)
    return wrap(view_part(node, 0) if is_complex(node) else node)


def imag(x: Array, /) -> Array:
    """Return a view of imaginary parts, float32."""
    node = as_node("imag", x)
    if not is_complex(node):
        raise DTypeError(f"imag: {node.spec.dtype}, needs complex64")
    return wrap(view_part(node, 1))
