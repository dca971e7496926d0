"""Bounds of values: clamp and hardtanh."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_number, vec4s
from wgpu_backend.ops.elementwise.launches import INTEGERS, in_registers
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(dense=("x",), trusted=True)
def clamp(x: Node, low: float, high: float) -> Launch:
    """Return the value, at least `low` and at most `high`.

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
    return _clamp("clamp", x, low, high, (*FLOATS, *INTEGERS))


@clamp.reference
def clamp_reference(x: Array, low: float, high: float) -> Array:
    """Clip to the bounds that the type can hold."""
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        low, high = (min(max(bound, info.min), info.max) for bound in (low, high))
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


def _clamp(name: str, x: Node, low: float, high: float, allowed: tuple[DType, ...]) -> Launch:
    """Return the launch of `clamp` or `hardtanh`."""
    require_dtype(name, "x", x, allowed)
    for bound, value in (("low", low), ("high", high)):
        require_number(name, bound, value)
    require(low <= high, ShapeError, f"{name}: {low} to {high}, needs the smaller number first")
    whole = x.spec.dtype not in FLOATS
    # As u32 bits: the shader reads them as the type of its values.
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
    """Return the number of an integer type that is nearest to a bound."""
    assert dtype.numpy is not None
    info = np.iinfo(dtype.numpy.name)
    low, high = info.min, info.max
    # Also -inf, which is not an integer.
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


@op(shader="ops/elementwise/clamp", dense=("x",), trusted=True)
def hardtanh(x: Node, low: float = -1.0, high: float = 1.0) -> Launch:
    """Return the value, at least `low` and at most `high`: `clamp` with default bounds.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`; NaN stays NaN.

    Raises
    ------
    ShapeError
        `low` is above `high`, or one is NaN.
    """
    return _clamp("hardtanh", x, low, high, FLOATS)


@hardtanh.reference
def hardtanh_reference(x: Array, low: float = -1.0, high: float = 1.0) -> Array:
    """Clip to bounds of the type of the values."""
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))
