"""Reductions over axes: sums and means, products, extremes, truth; and l2_norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wgpu_backend.dtypes import BOOL, F32, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import (
    FLOATS,
    Axes,
    grid_for,
    normalise_axes,
    require,
    require_dtype,
    require_rank,
    row_count,
)
from wgpu_backend.ops.elementwise.arithmetic import sqrt
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.folding import INTEGERS, NUMBERS, fold
from wgpu_backend.ops.reduce.folding import reduce as reduce
from wgpu_backend.ops.reduce.norm import in_vec4s
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import cast
from wgpu_backend.ops.shape.shapes import reshape_node

MOST_AXES = 8


def _kept_shape(shape: Shape, axes: Sequence[int], keep_dims: bool) -> Shape:
    if keep_dims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def _check_operand(name: str, x: Node, types: tuple[DType, ...] = FLOATS) -> None:
    require_rank(name, "x", x, 0, MOST_AXES)
    require_dtype(name, "x", x, types)


def sum(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Sum over axes.

    Parameters
    ----------
    x : (...)
        Up to eight axes, f32, f16, bf16, integers or bool.
    axes : int, sequence of int, or None
        None sums everything.
    keep_dims : bool
        Leave the axes in the shape, as 1.

    Returns
    -------
    Tensor without the axes, f32; of integers of 64 bits as they are, modulo 2⁶⁴, of other signed
    ones i32, of others u32, modulo 2³². NaN and infinities come through as in NumPy; the sum of
    nothing is 0.

    Raises
    ------
    ShapeError
        There is no such axis, or it is named twice.
    """
    _check_operand("sum", x, NUMBERS)
    found = normalise_axes("sum", x.spec, axes)
    return reshape_node(fold(x, "sum", found), _kept_shape(x.spec.shape, found, keep_dims))


def prod(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Multiply over axes; see `sum`.

    Parameters
    ----------
    x, axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, of the types that `sum` gives; the product of nothing is 1.
    """
    _check_operand("prod", x, NUMBERS)
    found = normalise_axes("prod", x.spec, axes)
    return reshape_node(fold(x, "prod", found), _kept_shape(x.spec.shape, found, keep_dims))


def logsumexp(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Compute the logarithm of the sum of exponentials over axes; see `sum`.

    Parameters
    ----------
    x : (...)
        f32, f16 or bf16.
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, f32. It overflows where the result does; of nothing it is -∞.
    """
    _check_operand("logsumexp", x)
    found = normalise_axes("logsumexp", x.spec, axes)
    return reshape_node(fold(x, "logaddexp", found), _kept_shape(x.spec.shape, found, keep_dims))


def any(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Return whether any value over axes is true; false for no values.

    Parameters
    ----------
    x : (...)
        Bool; of numbers, those that are not 0 are true.
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, bool.
    """
    return _logical("any", "max", x, axes, keep_dims)


def all(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Return whether all values over axes are true; true for no values. See `any`.

    Parameters
    ----------
    x : (...)
        Bool; of numbers, those that are not 0 are true.
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, bool.
    """
    return _logical("all", "min", x, axes, keep_dims)


def _logical(name: str, kind: str, x: Node, axes: Axes, keep_dims: bool) -> Node:
    _check_operand(name, x, NUMBERS)
    # NaN is true, as in NumPy, and a maximum of floats would not say so.
    truth = x if x.spec.dtype == BOOL else cast(x, dtype=BOOL)
    found = normalise_axes(name, x.spec, axes)
    # Any is the largest truth value, all the smallest.
    result = reshape_node(fold(truth, kind, found), _kept_shape(x.spec.shape, found, keep_dims))
    return cast(result, dtype=BOOL)


def sum_rows(x: Node) -> Node:
    """Sum each row, the last axis, which stays as 1; see `sum`."""
    return sum(x, -1, keep_dims=True)


def mean(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Take the mean over axes; see `sum`.

    Parameters
    ----------
    x : (...)
        f32, f16 or bf16.
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, f32; NaN where there is nothing to take the mean of.
    """
    _check_operand("mean", x)
    found = normalise_axes("mean", x.spec, axes)
    return reshape_node(_mean(x, found), _kept_shape(x.spec.shape, found, keep_dims))


def _count(x: Node, axes: Sequence[int]) -> int:
    return math.prod(x.spec.shape[a] for a in axes)


def _mean(x: Node, axes: Sequence[int]) -> Node:
    return fold(x, "sum", axes, float(_count(x, axes)))


def variance(x: Node, axes: Axes = None, *, keep_dims: bool = False, ddof: float = 0) -> Node:
    """Compute the mean square of the distance from the mean, over axes.

    Parameters
    ----------
    x : (...)
        f32, f16 or bf16.
    axes, keep_dims
        As in `sum`.
    ddof : float
        The sum of squares is divided by the number of values less this: 0 for the variance of a
        population, 1 for what a sample says of it.

    Returns
    -------
    Tensor without the axes, f32; NaN or infinite where there are no more than `ddof` values. The
    mean is subtracted first, so nothing cancels.
    """
    return _variance("variance", x, axes, keep_dims, ddof)


def _variance(name: str, x: Node, axes: Axes, keep_dims: bool, ddof: float) -> Node:
    _check_operand(name, x)
    found = normalise_axes(name, x.spec, axes)
    # Two passes: the mean of squares less the square of the mean cancels.
    centre = reshape_node(_mean(x, found), (-1,)) if x.spec.size else None
    count = float(_count(x, found)) - ddof
    # Divided by 0 it is NaN or infinite, as NumPy's with too large a ddof.
    squares = fold(x, "squares", found, count if count > 0 else 0.0, centre)
    return reshape_node(squares, _kept_shape(x.spec.shape, found, keep_dims))


def stddev(x: Node, axes: Axes = None, *, keep_dims: bool = False, ddof: float = 0) -> Node:
    """Compute the square root of the `variance` over axes.

    Parameters
    ----------
    x : (...)
        f32, f16 or bf16.
    axes, keep_dims, ddof
        As in `variance`.

    Returns
    -------
    Tensor without the axes, f32.
    """
    return sqrt(_variance("stddev", x, axes, keep_dims, ddof))


def _extreme(name: str, x: Node, axes: Axes, keep_dims: bool) -> Node:
    _check_operand(name, x, (*FLOATS, *INTEGERS))
    found = normalise_axes(name, x.spec, axes)
    shape = _kept_shape(x.spec.shape, found, keep_dims)
    require(
        _count(x, found) > 0 or math.prod(shape) == 0,
        ShapeError,
        f"{name}: x is {x.spec.shape}, axes {found} have 0 values, need at least 1",
    )
    result = reshape_node(fold(x, name, found), shape)
    return result if result.spec.dtype == x.spec.dtype else cast(result, dtype=x.spec.dtype)


def max(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Take the largest value over axes; NaN if there is one.

    Parameters
    ----------
    x : (...)
        f32, f16, bf16 or integers.
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, of the dtype of `x`.

    Raises
    ------
    ShapeError
        As in `sum`, or there is nothing to choose from.
    """
    return _extreme("max", x, axes, keep_dims)


def min(x: Node, axes: Axes = None, *, keep_dims: bool = False) -> Node:
    """Take the smallest value over axes; NaN if there is one. See `max`.

    Parameters
    ----------
    x : (...)
        f32, f16, bf16 or integers.
    axes, keep_dims
        As in `sum`.

    Returns
    -------
    Tensor without the axes, of the dtype of `x`.
    """
    return _extreme("min", x, axes, keep_dims)


@op(dense=("x",), trusted=True)
def l2_norm(x: Node, *, eps: float) -> Launch:
    """Divide each row by its length.

    Parameters
    ----------
    x : (..., cols)
        f32, f16 or bf16.
    eps : float
        Shorter rows are divided by it.

    Returns
    -------
    Tensor of the shape of `x`, f32: ``x / max(sqrt(sum(x * x)), eps)``.
    """
    require_rank("l2_norm", "x", x, 1)
    require_dtype("l2_norm", "x", x, FLOATS)
    rows, cols = row_count(x.spec), x.spec.shape[-1]
    return Launch(
        Spec.dense(x.spec.shape, F32),
        {"x": x},
        groups=grid_for(rows),
        shader="ops/reduce/l2_norm_vec4" if in_vec4s(cols, x) else "",
        params={"rows": rows, "cols": cols, "eps": eps},
        work=2 * x.spec.nbytes,
    )


@l2_norm.reference
def l2_norm_reference(x: Array, *, eps: float) -> Array:
    """Divide rows by their length."""
    # In f64, so that the tests show how exact a device's sums are.
    length = np.sqrt(np.sum(x.astype(np.float64) ** 2, axis=-1, keepdims=True))
    return x / np.maximum(length, eps)
