"""Functions of each value on its own: sqr, sqrt, exp, neg, sin, cos, softplus, clamp, fill."""

from __future__ import annotations

from wgpu_backend.dtypes import I32, U32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.activation import unary
from wgpu_backend.ops.bits import bits_of, require_movable
from wgpu_backend.ops.check import FLOATS, quads, require, require_dtype
from wgpu_backend.ops.op import op


@op(trusted=True)
def sqr(x: Node) -> Launch:
    """Square: ``x * x``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("sqr", x)


@op(trusted=True)
def sqrt(x: Node) -> Launch:
    """Square root, NaN below zero.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("sqrt", x)


@op(trusted=True)
def exp(x: Node) -> Launch:
    """Exponential.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("exp", x)


@op(trusted=True)
def neg(x: Node) -> Launch:
    """Value with the other sign.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("neg", x)


@op(trusted=True)
def sin(x: Node) -> Launch:
    """Sine, within some 1e-7 of the true value for every f32 angle.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
        Radians.

    Returns
    -------
    Like `x`, dense; NaN where `x` is infinite.
    """
    return unary("sin", x)


@op(trusted=True)
def cos(x: Node) -> Launch:
    """Cosine; see `sin`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
        Radians.

    Returns
    -------
    Like `x`, dense; NaN where `x` is infinite.
    """
    return unary("cos", x)


@op(trusted=True)
def softplus(x: Node) -> Launch:
    """Smooth form of `relu`: ``log(1 + exp(x))``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense.
    """
    return unary("softplus", x)


@op(dense=("x",), trusted=True)
def clamp(x: Node, low: float, high: float) -> Launch:
    """Value, moved up to `low` or down to `high` where it lies outside.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    low, high : float
        May be infinite.

    Returns
    -------
    Like `x`; NaN stays NaN.

    Raises
    ------
    ShapeError
        `low` is above `high`, or one is NaN.
    """
    require_dtype("clamp", "x", x, FLOATS)
    require(low <= high, ShapeError, f"clamp: {low} to {high}, needs the smaller number first")
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    return Launch(
        out,
        {"x": x},
        threads=quads(out.size),
        params={"size": out.size, "low": low, "high": high},
        in_place=("x",),
        work=2 * out.nbytes,
    )


@op(trusted=True)
def fill(x: Node, value: float) -> Launch:
    """Tensor like another, with one value everywhere.

    Parameters
    ----------
    x : (...), f32, f16, bf16, i32 or u32
        Its values do not matter.
    value : float
        Rounded to the type; for i32 and u32 a whole number within its range.

    Returns
    -------
    Like `x`, dense.

    Raises
    ------
    DTypeError
        The type cannot hold `value`.
    """
    y = require_movable("fill", "x", x)
    if x.spec.dtype in (I32, U32):
        low, high = (-(2**31), 2**31 - 1) if x.spec.dtype == I32 else (0, 2**32 - 1)
        require(
            low <= value <= high and int(value) == value,
            DTypeError,
            f"fill: {value} in a tensor of {x.spec.dtype}, needs a whole number {low} to {high}",
        )
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    return Launch(
        out,
        {},
        threads=quads(out.size),
        params={"size": out.size, "bits": bits_of(value, out.dtype)},
        choices={"y": f"bits_out/{y}"},
        work=out.nbytes,
    )
