"""Functions that fold axes: sum, prod, mean, var, max, any, argmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.base import wrap
from wgpu_backend.array.conversion import convert, flatten_node
from wgpu_backend.array.promotion import as_node, call_complex, is_bool, is_complex, to_floats
from wgpu_backend.array.types import FLOATING
from wgpu_backend.dtypes import BOOL, COMPLEX64, F32, I8, I16, I32, U8, U16, U32, DType, as_dtype
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape, extents
from wgpu_backend.ops.reduce import arguments, reduction
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import permute

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Axis = int | tuple[int, ...] | list[int] | None
# Types of sums and products: small integers are added in the default type of 32 bits, as the array
# API demands; those of 64 bits keep their type.
SUMMED = {BOOL: I32, I8: I32, I16: I32, I32: I32, U8: U32, U16: U32, U32: U32}
# Axes that the ops of reductions take; nodes with more are reshaped to two.
MOST_AXES = 8


def normalise_axes(name: str, x: Node, axis: Axis) -> tuple[int, ...]:
    """Return axes counted from the front; None is all."""
    if axis is None:
        return tuple(range(len(x.spec.shape)))
    return tuple(x.spec.axis(a, name) for a in extents(f"{name}: axis", axis))


def fold_axes(
    op: Callable[..., Node],
    name: str,
    x: Node,
    axis: Axis,
    keepdims: bool,
    **options: Any,
) -> Node:
    """Apply an op that folds axes to a node with any number of axes."""
    axes = found = normalise_axes(name, x, axis)
    if len(set(axes)) < len(axes):
        raise ShapeError(f"{name}: axes {axis}, needs each once")
    shape = x.spec.shape
    # Nothing to fold: each value is folded alone, along a new axis of 1.
    if not axes and shape:
        x, axes = reshape_node(x, (*shape, 1)), (len(shape),)
    if len(x.spec.shape) > MOST_AXES:
        x, axes = _move_axes_last(x, axes), (1,)
    return reshape_node(op(x, axes, **options), reduced_shape(shape, found, keepdims))


def _move_axes_last(x: Node, axes: tuple[int, ...]) -> Node:
    """Return a node as (kept, folded)."""
    rest = [a for a in range(len(x.spec.shape)) if a not in axes]
    moved = permute(x, *rest, *axes)
    count = 1
    for a in rest:
        count *= x.spec.shape[a]
    return reshape_node(moved, (count, x.spec.size // count if count else 0))


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return a shape without axes, or with 1 in their places."""
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def sum_dtype(x: Node, dtype: Any) -> DType:
    """Return the type of sums: the given one, or 32 bits for integers."""
    return SUMMED.get(x.spec.dtype, x.spec.dtype) if dtype is None else as_dtype(dtype)


def sum(x: Array, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Array:
    """Sum over axes, all by default.

    Parameters
    ----------
    x : (...), any numbers
    keepdims : bool
        Leave the axes in the shape, as 1.
    dtype : DType or None
        Type of the sum; None keeps floats, and takes 32 bits for integers.
    """
    return _accumulate(reduction.sum, "sum", x, axis, keepdims, dtype)


def prod(x: Array, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Array:
    """Multiply over axes; see `sum`."""
    return _accumulate(reduction.prod, "prod", x, axis, keepdims, dtype)


def _accumulate(
    op: Callable[..., Node], name: str, x: Array, axis: Axis, keepdims: bool, dtype: Any
) -> Array:
    node = as_node(name, x)
    kind = sum_dtype(node, dtype)
    if kind == COMPLEX64:
        return call_complex(name, wrap(convert(node, kind)), axis, keepdims)
    return wrap(convert(fold_axes(op, name, convert(node, kind), axis, keepdims), kind))


def mean(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """Take the mean over axes; integers are averaged in float32. See `sum`."""
    if is_complex(as_node("mean", x)):
        return call_complex("mean", x, axis, keepdims)
    return _reduce_floats(reduction.mean, "mean", x, axis, keepdims)


def logsumexp(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """Compute the logarithm of the sum of exponentials over axes. See `sum`."""
    return _reduce_floats(reduction.logsumexp, "logsumexp", x, axis, keepdims)


def max(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the largest value over axes; NaN if there is one. See `sum`."""
    return _extreme(reduction.max, "max", x, axis, keepdims)


def min(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the smallest value over axes; NaN if there is one. See `sum`."""
    return _extreme(reduction.min, "min", x, axis, keepdims)


def _extreme(op: Callable[..., Node], name: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    node = as_node(name, x)
    kind = node.spec.dtype
    # The kernel orders numbers; true is 1.
    numbers = convert(node, U8) if is_bool(node) else node
    return wrap(convert(fold_axes(op, name, numbers, axis, keepdims), kind))


def any(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether any value over axes is true, or not 0; false for no values. See `sum`."""
    return _truth(reduction.any, "any", x, axis, keepdims)


def all(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether all values over axes are true, or not 0; true for no values. See `sum`."""
    return _truth(reduction.all, "all", x, axis, keepdims)


def _truth(op: Callable[..., Node], name: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    return wrap(fold_axes(op, name, convert(as_node(name, x), BOOL), axis, keepdims))


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Count the values over axes that are not 0, int32. See `sum`."""
    return sum(wrap(convert(as_node("count_nonzero", x), BOOL)), axis, keepdims)


def argmax(x: Array, /, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the index of the largest value along an axis, or of all values, int32.

    The first of equal values; NaN counts as larger than any number.
    """
    return _argument(arguments.argmax, "argmax", x, axis, keepdims)


def argmin(x: Array, /, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the index of the smallest value along an axis, NaN before all; see `argmax`."""
    return _argument(arguments.argmin, "argmin", x, axis, keepdims)


def _argument(
    op: Callable[..., Node], name: str, x: Array, axis: int | None, keepdims: bool
) -> Array:
    node = as_node(name, x)
    shape = node.spec.shape
    if axis is None:
        found = op(flatten_node(node))
        return wrap(reshape_node(found, (1,) * len(shape) if keepdims else ()))
    if not shape:
        raise ShapeError(f"{name}: axis {axis} of an array without axes")
    return wrap(op(node, axis, keep_dims=keepdims))


def var(
    x: Array,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    ddof: float = 0,
    *,
    correction: float = 0,
) -> Array:
    """Compute the variance over axes.

    Parameters
    ----------
    x, axis, keepdims
        As in `mean`.
    ddof, correction : float
        Subtracted from the number of values in the divisor; two names of one number.
    """
    node = to_floats(as_node("var", x))
    # NumPy has `ddof`, the array API `correction`.
    options = {"ddof": float(ddof or correction)}
    y = fold_axes(reduction.variance, "var", node, axis, keepdims, **options)
    return wrap(convert(y, _float(node)))


def std(
    x: Array,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    ddof: float = 0,
    *,
    correction: float = 0,
) -> Array:
    """Compute the square root of the variance over axes; see `var`."""
    from wgpu_backend.array.elementwise import sqrt

    return sqrt(var(x, axis, keepdims, ddof, correction=correction))


def _reduce_floats(
    op: Callable[..., Node], name: str, x: Array, axis: Axis, keepdims: bool
) -> Array:
    node = to_floats(as_node(name, x))
    return wrap(convert(fold_axes(op, name, node, axis, keepdims), _float(node)))


def _float(x: Node) -> DType:
    return x.spec.dtype if x.spec.dtype in FLOATING else F32
