"""Ops that move values: contiguous, cast, concat."""

from __future__ import annotations

import math

from wgpu_backend.dtypes import I32, U32, DType
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, four, quads, require, require_dtype, require_rank
from wgpu_backend.ops.op import op


def _copy(x: Node, dtype: DType, name: str) -> Launch:
    require_rank(name, "x", x, 0)
    require_dtype(name, "x", x, (*FLOATS, I32, U32))
    out = Spec.dense(x.spec.shape, dtype)
    params = {
        "size": out.size,
        "shape": four(out.shape, 1),
        "x_strides": four(x.spec.strides, 0),
    }
    return Launch(
        out,
        {"x": x},
        threads=quads(out.size),
        params=params,
        shader="contiguous",
        work=x.spec.nbytes + out.nbytes,
    )


@op(trusted=True)
def contiguous(x: Node) -> Launch:
    """Copy `x` so that its elements follow each other in row-major order.

    Parameters
    ----------
    x : (...), up to four axes of any strides; f32, f16, bf16, i32 or u32

    Returns
    -------
    Like `x`, dense.
    """
    return _copy(x, x.spec.dtype, "contiguous")


@op(shader="contiguous", trusted=True)
def cast(x: Node, *, dtype: DType) -> Launch:
    """Convert to another element type, rounding to nearest even.

    Parameters
    ----------
    x : (...), up to four axes; f32, f16 or bf16
    dtype : DType
        f32, f16 or bf16.

    Returns
    -------
    Dense tensor of the shape of `x`.

    Raises
    ------
    DTypeError
        The conversion is not one between floating-point types.
    """
    require_dtype("cast", "x", x, FLOATS)
    require(dtype in FLOATS, DTypeError, f"cast: {x.spec.dtype} to {dtype}, needs f32, f16 or bf16")
    return _copy(x, dtype, "cast")


@op(dense=("a", "b"), trusted=True)
def concat(a: Node, b: Node, *, axis: int) -> Launch:
    """Join two tensors along an axis.

    Parameters
    ----------
    a : (..., i, ...)
    b : (..., j, ...), all other extents and the dtype as in `a`
    axis : int

    Returns
    -------
    (..., i + j, ...), the values of `a` first.

    Raises
    ------
    ShapeError
        Another extent than that of `axis` differs.
    """
    axis = a.spec.axis(axis, "concat")
    rest_a = a.spec.shape[:axis] + a.spec.shape[axis + 1 :]
    rest_b = b.spec.shape[:axis] + b.spec.shape[axis + 1 :]
    require(
        rest_a == rest_b and len(a.spec.shape) == len(b.spec.shape),
        ShapeError,
        f"concat: {a.spec.shape} and {b.spec.shape} differ beyond axis {axis}",
    )
    require_dtype("concat", "b", b, (a.spec.dtype,))
    require_dtype("concat", "a", a, FLOATS)
    joined = a.spec.shape[axis] + b.spec.shape[axis]
    out = Spec.dense((*a.spec.shape[:axis], joined, *a.spec.shape[axis + 1 :]), a.spec.dtype)
    params = {
        "size": out.size,
        "inner": math.prod(a.spec.shape[axis + 1 :]),
        "a_middle": a.spec.shape[axis],
        "b_middle": b.spec.shape[axis],
    }
    return Launch(
        out, {"a": a, "b": b}, threads=quads(out.size), params=params, work=2 * out.nbytes
    )
