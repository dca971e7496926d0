"""The matrix product with NumPy's rules, made of `mulmat`."""

from __future__ import annotations

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast
from wgpu_backend.ops.check import require, require_rank
from wgpu_backend.ops.linear.linear import mulmat
from wgpu_backend.ops.linear.normed import GROUP
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.views import expand, make_view, permute

# Rows of `a` from which on a transposed copy of `b` pays.
WORTH_COPYING = 8


def matmul(a: Node, b: Node) -> Node:
    """Multiply matrices as ``numpy.matmul`` does, summing in f32.

    Parameters
    ----------
    a : (..., n, k) or (k,), f32, f16 or bf16
    b : (..., k, m) or (k,), f32, f16 or bf16
        Also the transposed view of a matrix (m, k) in a block format.

    Returns
    -------
    (..., n, m), f32
        Leading axes broadcast. A vector is a row as `a` and a column as `b`, and its axis is left
        out of the result.

    Raises
    ------
    ShapeError
        Inner extents differ, leading axes do not broadcast, or an operand is a scalar.
    """
    require_rank("matmul", "a", a, 1)
    require_rank("matmul", "b", b, 1)
    rows, columns = _as_rows(a), _as_columns(b)
    require(
        rows.spec.shape[-1] == columns.spec.shape[-2],
        ShapeError,
        f"matmul: a is {a.spec.shape}, b is {b.spec.shape}; rows of a have "
        f"{rows.spec.shape[-1]} values, columns of b have {columns.spec.shape[-2]}",
    )
    batch = _batch(rows, columns)
    # `mulmat` repeats a weight for the batches of x, and not x.
    rows = expand(rows, (*batch, *rows.spec.shape[-2:]))
    y = mulmat(_transpose(columns, rows), rows)
    shape = list(y.spec.shape)
    # NumPy drops the axis that made a matrix of a vector.
    if len(b.spec.shape) == 1:
        shape.pop(-1)
    if len(a.spec.shape) == 1:
        shape.pop(len(batch))
    return y if len(shape) == len(y.spec.shape) else make_view(y, Spec.dense(shape, F32))


def _as_rows(a: Node) -> Node:
    spec = a.spec
    if len(spec.shape) > 1:
        return a
    return make_view(a, Spec((1, *spec.shape), spec.dtype, (0, *spec.strides), spec.offset))


def _as_columns(b: Node) -> Node:
    spec = b.spec
    if len(spec.shape) > 1:
        return b
    return make_view(b, Spec((*spec.shape, 1), spec.dtype, (*spec.strides, 0), spec.offset))


def _batch(a: Node, b: Node) -> Shape:
    left, right = (Spec.dense(n.spec.shape[:-2], F32) for n in (a, b))
    return broadcast("matmul", left, right)


def _transpose(b: Node, a: Node) -> Node:
    """Return the rows of `mulmat`'s weight: a view, or a copy if that allows a fast kernel."""
    axes = range(len(b.spec.shape))
    weight = permute(b, *axes[:-2], axes[-1], axes[-2])
    # The conditions of `linear`; `matmul_strided` takes the view as it is.
    fast = len(axes) == 2 and a.spec.dtype == F32 and b.spec.shape[0] % GROUP == 0
    large = a.spec.size >= WORTH_COPYING * max(a.spec.shape[-1], 1)
    # A weight of a model has no builder of its own.
    builder = weight.builder or a.builder
    if fast and large and not weight.spec.is_dense and builder is not None:
        return contiguous.add_to(builder, weight)
    return weight
