"""Arithmetic value by value with NumPy broadcasting: add, sub, mul, div, power and the extremes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import I8, I16, I32, U8, U16, U32, DType
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast, broadcast_strides
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require_dtype, require_rank, vec4s
from wgpu_backend.ops.elementwise.wide import WIDE, wide
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

INTEGERS = (I32, U32, I16, U16, I8, U8)  # that registers hold
NUMBERS = (*FLOATS, *INTEGERS, *WIDE)


def binary(
    name: str,
    a: Node,
    b: Node,
    allowed: tuple[DType, ...] = FLOATS,
    choices: Mapping[str, str | bool] | None = None,
    result: DType | None = None,
    *,
    mixed: bool = True,
) -> Launch:
    """Launch of an op whose WGSL builds on ``lib/elementwise/binary``.

    Parameters
    ----------
    name : str
        Of the op, for messages.
    a, b : (...), of one of the types `allowed`, shapes that broadcast
        Both floats, or both of one type.
    allowed : tuple of DType
    choices : mapping
        Of the shader, beyond those of every op of two operands.
    result : DType or None
        None is the type of `a`.
    mixed : bool
        Two types of floats may meet.
    """
    require_rank(name, "a", a, 0)
    require_dtype(name, "a", a, allowed)
    require_rank(name, "b", b, 0)
    require_dtype(name, "b", b, FLOATS if mixed and a.spec.dtype in FLOATS else (a.spec.dtype,))
    out = Spec.dense(broadcast(name, a.spec, b.spec), result or a.spec.dtype)
    if a.spec.dtype in WIDE:
        return wide(name, a, b, out, choices)
    params = {
        "size": out.size,
        "shape": pad_to_4d(out.shape, 1),
        "a_strides": pad_to_4d(broadcast_strides(a.spec, out.shape), 0),
        "b_strides": pad_to_4d(broadcast_strides(b.spec, out.shape), 0),
        "b_size": max(b.spec.size, 1),
    }
    more = {**in_registers(a.spec.dtype), **(choices or {})}
    choices = {
        **more,
        "A_DENSE": a.spec.is_dense and a.spec.shape == out.shape,
        "B_DENSE": b.spec.is_dense and b.spec.shape == out.shape,
        "B_WRAPS": wraps(b.spec, out.shape),
    }
    return Launch(
        out,
        {"a": a, "b": b},
        threads=vec4s(out.size),
        params=params,
        choices=choices,
        in_place=("a", "b"),
        work=a.spec.nbytes + b.spec.nbytes + out.nbytes,
    )


def in_registers(dtype: DType) -> dict[str, str | bool]:
    """Choices of ``lib/elementwise/values`` for a type: floats are what it is written for."""
    if dtype in FLOATS:
        return {}
    return {"Value": "i32" if is_signed(dtype) else "u32", "FLOAT": False}


def is_signed(dtype: DType) -> bool:
    """Whether a type is of integers that may be negative."""
    return dtype in (I32, I16, I8)


def float_or_whole(name: str, a: Node, b: Node, shader: str) -> Launch:
    """Launch of an op that has a shader of its own for integers that registers hold."""
    if a.spec.dtype not in INTEGERS:
        return binary(name, a, b, NUMBERS)
    launch = binary(name, a, b, NUMBERS, {"SIGNED": is_signed(a.spec.dtype)})
    return replace(launch, shader=shader)


def wraps(spec: Spec, shape: Shape) -> bool:
    """Whether a dense operand repeats whole in `shape`, four values at a time."""
    own = spec.shape
    while own and own[0] == 1:
        own = own[1:]
    is_end = own == shape[len(shape) - len(own) :] and spec.shape != shape
    return spec.is_dense and is_end and spec.size % 4 == 0 and spec.size > 0


@op(trusted=True, constants=("a", "b"))
def add(a: Node, b: Node) -> Launch:
    """Sum of two tensors, with broadcasting.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast; or of one integer type
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`; integers modulo their range.

    Raises
    ------
    ShapeError
        The shapes do not broadcast.
    DTypeError
        The types are others, or an integer meets a float.
    """
    return binary("add", a, b, NUMBERS)


@add.reference
def add_reference(a: Array, b: Array) -> Array:
    """Sum."""
    return a + b


@op(trusted=True, constants=("a", "b"))
def sub(a: Node, b: Node) -> Launch:
    """Difference of two tensors; see `add`."""
    return binary("sub", a, b, NUMBERS)


@sub.reference
def sub_reference(a: Array, b: Array) -> Array:
    """Difference."""
    return a - b


@op(trusted=True, constants=("a", "b"))
def mul(a: Node, b: Node) -> Launch:
    """Product of two tensors, value by value; see `add`."""
    return binary("mul", a, b, NUMBERS)


@mul.reference
def mul_reference(a: Array, b: Array) -> Array:
    """Product."""
    return a * b


@op(trusted=True, constants=("a", "b"))
def div(a: Node, b: Node) -> Launch:
    """Quotient of two tensors of floats, value by value; see `add`."""
    return binary("div", a, b)


@div.reference
def div_reference(a: Array, b: Array) -> Array:
    """Quotient."""
    return a / b


@op(trusted=True, constants=("a", "b"))
def power(a: Node, b: Node) -> Launch:
    """Power of two tensors, value by value; see `add`.

    Of integers it is exact, modulo their range; with an exponent below zero it is 0, but of 1 and
    -1. Of floats below zero only whole powers are numbers; ``x ** 0`` and ``1 ** y`` are 1 even of
    NaN, as in NumPy. With n = b · log2 |a| a result may be off by some (4 + 3 |n|) 2⁻²⁴ of
    itself; whole powers up to 15 are products.
    """
    return float_or_whole("power", a, b, "ops/elementwise/power_whole")


@power.reference
def power_reference(a: Array, b: Array) -> Array:
    """Power, by way of f64: NumPy's own of f32 is off by some units where a result is small."""
    if a.dtype.kind in "iu":
        found = np.power(a, np.maximum(b, 0))
        return np.where((b >= 0) | (np.abs(a) == 1), np.where(b < 0, a ** (b & 1), found), 0)
    return a.astype(np.float64) ** b.astype(np.float64)


@op(trusted=True, constants=("a", "b"))
def maximum(a: Node, b: Node) -> Launch:
    """Larger value of two tensors, NaN where one has it; see `add`."""
    return binary("maximum", a, b, NUMBERS)


@maximum.reference
def maximum_reference(a: Array, b: Array) -> Array:
    """Larger value."""
    return np.maximum(a, b)


@op(trusted=True, constants=("a", "b"))
def minimum(a: Node, b: Node) -> Launch:
    """Smaller value of two tensors, NaN where one has it; see `add`."""
    return binary("minimum", a, b, NUMBERS)


@minimum.reference
def minimum_reference(a: Array, b: Array) -> Array:
    """Smaller value."""
    return np.minimum(a, b)


@op(dense=("x",), trusted=True)
def scale(x: Node, *, factor: float, bias: float = 0.0) -> Launch:
    """Multiply by a number and add another.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    factor, bias : float

    Returns
    -------
    Like `x`: ``x * factor + bias``.
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
    """Multiple and sum with numbers."""
    return x * x.dtype.type(factor) + x.dtype.type(bias)
