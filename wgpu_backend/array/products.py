"""Products of matrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.conversion import MOST_AXES, convert
from wgpu_backend.array.core import constant, wrap
from wgpu_backend.array.lifting import (
    apply_to_nodes,
    as_node,
    call_complex,
    is_complex,
    promote_operands,
)
from wgpu_backend.array.types import FLOATING
from wgpu_backend.dtypes import COMPLEX64, F32, I32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec, broadcast, slice_axis
from wgpu_backend.ops.elementwise import arithmetic, bitwise
from wgpu_backend.ops.elementwise.launches import WIDE
from wgpu_backend.ops.linear import products
from wgpu_backend.ops.reduce import reduction
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import expand, make_view

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

FEW = 1 << 16  # products of integers that are made one by one and added
DIGIT = 8  # bits
EXACT = 256  # products of two digits whose sum f32 holds: 256 * 255² < 2²⁴


def matmul(a: Any, b: Any, /) -> Array:
    """Matrix product as ``numpy.matmul``; leading axes broadcast, sums are in float32.

    Parameters
    ----------
    a : (..., n, k) or (k,), any numbers
    b : (..., k, m) or (k,), any numbers

    Returns
    -------
    (..., n, m), of the type both are promoted to
        Of integers exact, modulo their range; large ones cost ten products of floats, those of 64
        bits 36.
    """
    left, right = promote_operands("matmul", a, b)
    kind = left.spec.dtype
    if not left.spec.shape or not right.spec.shape:
        raise ShapeError(f"matmul: {left.spec.shape} and {right.spec.shape}, needs axes")
    if kind in FLOATING:
        return wrap(convert(product(left, right), kind))
    if kind == COMPLEX64:
        return call_complex("matmul", wrap(left), wrap(right))
    word = kind if kind in WIDE else U32
    return wrap(convert(_whole(convert(left, word), convert(right, word)), kind))


def _whole(a: Node, b: Node) -> Node:
    """Matrix product of u32 modulo 2³², or of integers of 64 bits modulo 2⁶⁴."""
    rows = a if len(a.spec.shape) > 1 else reshape_node(a, (1, *a.spec.shape))
    cols = b if len(b.spec.shape) > 1 else reshape_node(b, (*b.spec.shape, 1))
    if rows.spec.shape[-1] != cols.spec.shape[-2]:
        raise ShapeError(
            f"matmul: a is {a.spec.shape}, b is {b.spec.shape}; rows of a have "
            f"{rows.spec.shape[-1]} values, columns of b have {cols.spec.shape[-2]}"
        )
    batch = broadcast("matmul", _leading(rows), _leading(cols))
    small = math.prod(batch) * rows.spec.size * cols.spec.shape[-1] <= FEW
    y = _pair_by_pair(rows, cols) if small else _by_digits(rows, cols)
    shape = list(y.spec.shape)
    if len(b.spec.shape) == 1:
        shape.pop(-1)
    if len(a.spec.shape) == 1:
        shape.pop(len(batch))
    return reshape_node(y, shape)


def _pair_by_pair(a: Node, b: Node) -> Node:
    from wgpu_backend.array.reductions import fold_axes

    left = reshape_node(a, (*a.spec.shape, 1))
    right = reshape_node(b, (*b.spec.shape[:-2], 1, *b.spec.shape[-2:]))
    pairs = apply_to_nodes(arithmetic.mul, "matmul", left, right)
    return fold_axes(reduction.sum, "matmul", pairs, -2, False)


def _by_digits(a: Node, b: Node) -> Node:
    """Sums of products of digits, each exact in f32, moved to their places and added."""
    total: Node | None = None
    count = a.spec.dtype.block_nbytes
    for start in range(0, a.spec.shape[-1], EXACT):
        stop = min(start + EXACT, a.spec.shape[-1])
        left = _digits(make_view(a, slice_axis(a.spec, -1, start, stop)))
        right = _digits(make_view(b, slice_axis(b.spec, -2, start, stop)))
        for i in range(count):
            for j in range(count - i):
                part = convert(product(left[i], right[j]), a.spec.dtype)
                placed = _over_number(bitwise.left_shift, part, DIGIT * (i + j))
                total = (
                    placed
                    if total is None
                    else apply_to_nodes(arithmetic.add, "matmul", total, placed)
                )
    assert total is not None
    return total


def _digits(x: Node) -> list[Node]:
    count = x.spec.dtype.block_nbytes
    low = [_over_number(bitwise.right_shift, x, DIGIT * i) for i in range(count)]
    return [convert(_over_number(bitwise.bitwise_and, d, 255), F32) for d in low]


def _over_number(op: Any, x: Node, number: int) -> Node:
    session: Any = x.builder
    return apply_to_nodes(op, "matmul", x, constant(session, np.asarray(number), x.spec.dtype))


def product(a: Node, b: Node) -> Node:
    """Matrix product of nodes of floats with any number of leading axes, f32."""
    if max(len(a.spec.shape), len(b.spec.shape)) <= MOST_AXES:
        return products.matmul(a, b)
    batch = broadcast("matmul", _leading(a), _leading(b))
    count = math.prod(batch)
    rows = reshape_node(expand(a, (*batch, *a.spec.shape[-2:])), (count, *a.spec.shape[-2:]))
    cols = reshape_node(expand(b, (*batch, *b.spec.shape[-2:])), (count, *b.spec.shape[-2:]))
    y = products.matmul(rows, cols)
    return reshape_node(y, (*batch, *y.spec.shape[1:]))


def _leading(x: Node) -> Spec:
    if len(x.spec.shape) < 2:
        raise ShapeError(f"matmul: {x.spec.shape} beside a batch, needs at least 2 axes")
    return Spec.dense(x.spec.shape[:-2], F32)


def addmm(c: Array, a: Array, b: Array, /, alpha: float = 1.0, beta: float = 1.0) -> Array:
    """``beta * c + alpha * (a @ b)``."""
    y = matmul(a, b)
    y = y if alpha == 1 else y * alpha
    return y + (c if beta == 1 else c * beta)


def linear(x: Array, weight: Array, /, bias: Array | None = None) -> Array:
    """``x @ weight + bias``, with the weight as (inputs, outputs)."""
    y = matmul(x, weight)
    return y if bias is None else y + bias


def outer(a: Array, b: Array, /) -> Array:
    """Products of all pairs of values, (values of a, values of b)."""
    return a.reshape(-1, 1) * b.reshape(1, -1)


def inner(a: Array, b: Array, /) -> Array:
    """Sums of products along the last axes of both."""
    if not a.ndim or not b.ndim:
        return a * b
    return tensordot(a, b, axes=([-1], [-1]))


def kron(a: Array, b: Array, /) -> Array:
    """Kronecker product: each value of `a` times all of `b`, in its place."""
    rank = max(a.ndim, b.ndim)
    own = [(1,) * (rank - x.ndim) + x.shape for x in (a, b)]
    left = a.reshape(*(n for extent in own[0] for n in (extent, 1)))
    right = b.reshape(*(n for extent in own[1] for n in (1, extent)))
    return (left * right).reshape(*(n * m for n, m in zip(*own, strict=True)))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Sum of products along an axis, the same of both, as other axes broadcast.

    Of complex numbers, those of `x1` are conjugated.
    """
    from wgpu_backend.array.elementwise import conj
    from wgpu_backend.array.reductions import sum

    left, right = (as_node("vecdot", x) for x in (x1, x2))
    ends = [n.spec.shape[n.spec.axis(axis, "vecdot")] for n in (left, right)]
    if ends[0] != ends[1]:
        raise ShapeError(f"vecdot: axis {axis} has {ends[0]} values of x1, {ends[1]} of x2")
    pairs = (conj(x1) if is_complex(left) else x1) * x2
    if pairs.dtype in (*FLOATING, COMPLEX64, I32, U32, *WIDE):
        return sum(pairs, axis, dtype=pairs.dtype)
    return sum(pairs, axis).astype(pairs.dtype)


def tensordot(a: Array, b: Array, /, axes: Any = 2) -> Array:
    """Sums of products over axes of both.

    Parameters
    ----------
    a, b : any numbers
    axes : int, or two sequences of int
        So many last axes of `a` and first axes of `b`; or which of each.
    """
    first, second = (as_node("tensordot", x) for x in (a, b))
    ranks = len(first.spec.shape), len(second.spec.shape)
    if isinstance(axes, int):
        if not 0 <= axes <= min(ranks):
            raise ShapeError(f"tensordot: {axes} axes of {a.shape} and {b.shape}")
        gone = [list(range(ranks[0] - axes, ranks[0])), list(range(axes))]
    else:
        gone = [
            [x.spec.axis(k, "tensordot") for k in ((ks,) if isinstance(ks, int) else ks)]
            for x, ks in zip((first, second), axes, strict=True)
        ]
    folded = [[x.spec.shape[k] for k in ks] for x, ks in zip((first, second), gone, strict=True)]
    if folded[0] != folded[1]:
        raise ShapeError(f"tensordot: axes {gone} have {folded[0]} and {folded[1]} values")
    rest = [[k for k in range(n) if k not in ks] for n, ks in zip(ranks, gone, strict=True)]
    outer_shape = [a.shape[k] for k in rest[0]] + [b.shape[k] for k in rest[1]]
    count = math.prod(folded[0])
    left = a.transpose(*rest[0], *gone[0]) if a.ndim else a
    right = b.transpose(*gone[1], *rest[1]) if b.ndim else b
    rows, cols = math.prod(a.shape[k] for k in rest[0]), math.prod(b.shape[k] for k in rest[1])
    y = matmul(left.reshape(rows, count), right.reshape(count, cols))
    return y.reshape(tuple(outer_shape))
