"""Functions of each value on its own: sqr, sqrt, exp, log, abs, sin, clamp, fill and their like."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import BF16, BOOL, F32, DType, convert_values, value_bits
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_number, vec4s
from wgpu_backend.ops.elementwise.activation import unary
from wgpu_backend.ops.elementwise.arithmetic import INTEGERS, NUMBERS, in_registers
from wgpu_backend.ops.elementwise.wide import WIDE, wide
from wgpu_backend.ops.index.bits import moving, require_plain
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(trusted=True)
def sqr(x: Node) -> Launch:
    """Square: ``x * x``.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or an integer

    Returns
    -------
    Like `x`, dense.
    """
    if x.spec.dtype in WIDE:
        return wide("mul", x, x, Spec.dense(x.spec.shape, x.spec.dtype))
    return unary("sqr", x, NUMBERS)


@sqr.reference
def sqr_reference(x: Array) -> Array:
    """Square."""
    return x * x


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


@sqrt.reference
def sqrt_reference(x: Array) -> Array:
    """Square root."""
    return np.sqrt(x)


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


@exp.reference
def exp_reference(x: Array) -> Array:
    """Exponential."""
    return np.exp(x)


@op(trusted=True)
def neg(x: Node) -> Launch:
    """Value with the other sign.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or an integer

    Returns
    -------
    Like `x`, dense.
    """
    return unary("neg", x, NUMBERS)


@neg.reference
def neg_reference(x: Array) -> Array:
    """Value with the other sign."""
    return -x


@op(trusted=True)
def log(x: Node) -> Launch:
    """Natural logarithm, within 4 units in the last place of f32.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense; -inf where `x` is zero, NaN below.
    """
    return unary("log", x)


@log.reference
def log_reference(x: Array) -> Array:
    """Natural logarithm."""
    return np.log(x)


@op(trusted=True)
def abs(x: Node) -> Launch:
    """Value without its sign.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or an integer

    Returns
    -------
    Like `x`, dense; the smallest integer stays as it is, as in NumPy.
    """
    return unary("abs", x, NUMBERS)


@abs.reference
def abs_reference(x: Array) -> Array:
    """Value without its sign."""
    return np.abs(x)


@op(trusted=True)
def sign(x: Node) -> Launch:
    """Sign as a number: 1 above zero, -1 below it, 0 for zero.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or an integer

    Returns
    -------
    Like `x`, dense; NaN where `x` is NaN.
    """
    return unary("sign", x, NUMBERS)


@sign.reference
def sign_reference(x: Array) -> Array:
    """Sign as a number."""
    return np.sign(x)


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


@sin.reference
def sin_reference(x: Array) -> Array:
    """Sine."""
    return np.sin(x.astype(np.float64))


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


@cos.reference
def cos_reference(x: Array) -> Array:
    """Cosine."""
    return np.cos(x.astype(np.float64))


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


@softplus.reference
def softplus_reference(x: Array) -> Array:
    """Smooth form of relu."""
    return np.logaddexp(x, x.dtype.type(0))


@op(dense=("x",), trusted=True)
def clamp(x: Node, low: float, high: float) -> Launch:
    """Value, moved up to `low` or down to `high` where it lies outside.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or an integer of up to 32 bits
    low, high : float
        May be infinite, or beyond the type; for integers whole numbers otherwise.

    Returns
    -------
    Like `x`; NaN stays NaN.

    Raises
    ------
    ShapeError
        `low` is above `high`, or one is NaN.
    DTypeError
        A bound for integers has a fraction.
    """
    return clamped("clamp", x, low, high, (*FLOATS, *INTEGERS))


@clamp.reference
def clamp_reference(x: Array, low: float, high: float) -> Array:
    """Value within bounds."""
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        low, high = (min(max(bound, info.min), info.max) for bound in (low, high))
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


def clamped(name: str, x: Node, low: float, high: float, allowed: tuple[DType, ...]) -> Launch:
    """Launch of `clamp` under some name."""
    require_dtype(name, "x", x, allowed)
    for bound, value in (("low", low), ("high", high)):
        require_number(name, bound, value)
    require(low <= high, ShapeError, f"{name}: {low} to {high}, needs the smaller number first")
    whole = x.spec.dtype not in FLOATS
    bounds = (_whole_bound(x.spec.dtype, b) % 2**32 if whole else b for b in (low, high))
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params={"size": out.size, **dict(zip(("low", "high"), bounds, strict=True))},
        choices={"Value": in_registers(x.spec.dtype)["Value"]} if whole else {},
        shader="ops/elementwise/clamp_whole" if whole else "",
        in_place=("x",),
        work=2 * out.nbytes,
    )


def _whole_bound(dtype: DType, bound: float) -> int:
    """Nearest number to a bound that a type of integers holds."""
    assert dtype.numpy is not None
    low, high = _range(dtype.numpy)
    if bound <= low:
        return low
    if bound >= high:
        return high
    require(
        int(bound) == bound,
        DTypeError,
        f"clamp: {bound} bounds a tensor of {dtype}, needs a whole number",
    )
    return int(bound)


@op(shader="ops/shape/fill", trusted=True)
def fill(x: Node, value: float) -> Launch:
    """Tensor like another, with one value everywhere.

    Parameters
    ----------
    x : (...), any plain dtype
        Its values do not matter.
    value : float
        Rounded to the type; for integers a whole number within their range, for bool 0 or 1.

    Returns
    -------
    Like `x`, dense.

    Raises
    ------
    DTypeError
        The type cannot hold `value`.
    """
    require_plain("fill", "x", x)
    _require_held(value, x.spec.dtype)
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    high, low = divmod(value_bits(value, out.dtype), 2**32)
    return Launch(
        out,
        {},
        threads=vec4s(out.size),
        params={"size": out.size, "low": low, "high": high},
        choices=moving(out.dtype),
        work=out.nbytes,
    )


@fill.reference
def fill_reference(x: Array, value: float) -> Array:
    """One value everywhere."""
    return np.full(x.shape, value, x.dtype)


def _require_held(value: float, dtype: DType) -> None:
    """Raise DTypeError where an integer type does not hold a number."""
    assert dtype.numpy is not None
    if dtype == BF16 or dtype.numpy.kind not in "biu":
        convert_values("fill", np.asarray(value), F32 if dtype == BF16 else dtype)
        return
    low, high = (0, 1) if dtype == BOOL else _range(dtype.numpy)
    require(
        low <= value <= high and int(value) == value,
        DTypeError,
        f"fill: {value} in a tensor of {dtype}, needs a whole number {low} to {high}",
    )


def _range(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    info = np.iinfo(dtype.name)
    return info.min, info.max
