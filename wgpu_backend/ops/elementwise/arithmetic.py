"""Arithmetic of each value: sums, products, quotients, powers, extremes, signs and roots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, require_dtype, vec4s
from wgpu_backend.ops.elementwise.launches import (
    INTEGERS,
    NUMBERS,
    WIDE,
    binary,
    is_signed,
    unary,
    wide,
)
from wgpu_backend.ops.elementwise.makers import (
    binary_number_op,
    binary_op,
    in_f64,
    op_maker,
    unary_number_op,
    unary_op,
)
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op_maker(constants=("a", "b"))
def _float_or_whole_op(name: str, a: Node, b: Node) -> Launch:
    """Launch an op with a shader of its own for integers of up to 32 bits.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast; or of one integer type
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`.

    Raises
    ------
    ShapeError
        The shapes do not broadcast.
    DTypeError
        Other types, or an integer and a float.
    """
    if a.spec.dtype not in INTEGERS:
        return binary(name, a, b, NUMBERS)
    # Quotients round down, which depends on signs.
    launch = binary(name, a, b, NUMBERS, {"SIGNED": is_signed(a.spec.dtype)})
    return replace(launch, shader=f"ops/elementwise/{name}_whole")


def _floor_divide(a: Array, b: Array) -> Array:
    """Divide and round down; an infinity by a number is infinite, where NumPy returns NaN."""
    found = np.floor_divide(a, b)
    if a.dtype.kind != "f":
        return found
    return np.where(np.isinf(a) & np.isfinite(b), np.where(np.signbit(b), -a, a), found)


def _power(a: Array, b: Array) -> Array:
    """Compute powers in f64: NumPy's own of f32 is off by some units where a result is small."""
    if a.dtype.kind in "iu":
        # NumPy refuses negative exponents of integers.
        found = np.power(a, np.maximum(b, 0))
        return np.where((b >= 0) | (np.abs(a) == 1), np.where(b < 0, a ** (b & 1), found), 0)
    return a.astype(np.float64) ** b.astype(np.float64)


add = binary_number_op("add", np.add, "Return the sum of two tensors.")
sub = binary_number_op("sub", np.subtract, "Return the difference of two tensors.")
mul = binary_number_op("mul", np.multiply, "Return the product of two tensors, value by value.")
div = binary_op("div", np.divide, "Return the quotient of two tensors, value by value.")
maximum = binary_number_op("maximum", np.maximum, "Return the larger value, NaN if one is NaN.")
minimum = binary_number_op("minimum", np.minimum, "Return the smaller value, NaN if one is NaN.")
floor_divide = _float_or_whole_op(
    "floor_divide",
    _floor_divide,
    "Return the largest whole number that is not above the quotient: ``a // b``.",
    """\
An integer divided by zero is 0, a float infinite or NaN; an infinity divided by a number is
infinite. Quotients of floats from 2²³ on may be off by 3 units in the last place.""",
)
remainder = _float_or_whole_op(
    "remainder",
    np.remainder,
    "Return the rest of `floor_divide`, with the sign of `b`: ``a % b``.",
    """\
Of floats it is exact except for the one sum that moves it to the sign of `b`. The remainder by
zero is 0 of integers and NaN of floats.""",
)
power = _float_or_whole_op(
    "power",
    _power,
    "Return ``a ** b``, value by value.",
    """\
Of integers it is exact, modulo their range; with a negative exponent it is 0, except of 1 and -1.
Negative floats have whole powers only; ``x ** 0`` and ``1 ** y`` are 1 even of NaN, as in NumPy.
With n = b · log2 |a| a result may be off by some (4 + 3 |n|) 2⁻²⁴ of itself; whole powers up to 15
are products.""",
)

neg = unary_number_op("neg", np.negative, "Return the value with the other sign.")
abs = unary_number_op(
    "abs",
    np.abs,
    "Return the value without its sign.",
    "The smallest integer stays as it is, as in NumPy.",
)
sign = unary_number_op(
    "sign", np.sign, "Return 1 above zero, -1 below it, 0 for zero and NaN for NaN."
)
sqrt = unary_op("sqrt", np.sqrt, "Return the square root, NaN below zero.")
rsqrt = unary_op(
    "rsqrt",
    in_f64(lambda x: 1 / np.sqrt(x)),
    "Return one over the square root: ``1 / sqrt(x)``.",
    "It is infinite where `x` is zero, with its sign, and NaN below.",
)
reciprocal = unary_op(
    "reciprocal",
    lambda x: 1 / x,
    "Return one over the value: ``1 / x``.",
    "It is infinite where `x` is zero, with its sign.",
)


@op_maker()
def _sqr_op(name: str, x: Node) -> Launch:
    """Launch a square; a 64-bit one is a product.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or an integer

    Returns
    -------
    Like `x`, dense.
    """
    if x.spec.dtype in WIDE:
        return wide("mul", x, x, Spec.dense(x.spec.shape, x.spec.dtype))
    return unary(name, x, NUMBERS)


sqr = _sqr_op("sqr", np.square, "Return the square: ``x * x``.")


@op(dense=("x",), trusted=True)
def scale(x: Node, *, factor: float, bias: float = 0.0) -> Launch:
    """Multiply by a number and add another: ``x * factor + bias``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`.
    """
    require_dtype("scale", "x", x, FLOATS)
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    params = {"size": out.size, "factor": factor, "bias": bias}
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params=params,
        in_place=("x",),
        work=2 * out.nbytes,
    )


@scale.reference
def scale_reference(x: Array, *, factor: float, bias: float = 0.0) -> Array:
    """Multiply and add in the type of the values."""
    return x * x.dtype.type(factor) + x.dtype.type(bias)
