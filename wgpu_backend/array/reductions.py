"""Functions that fold axes: sum, mean, max and their like."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.core import wrap
from wgpu_backend.array.lifting import MOST_AXES, as_node, converted, floating
from wgpu_backend.array.types import FLOATING
from wgpu_backend.dtypes import BOOL, F32, I8, I16, I32, U8, U16, U32, DType, dtype_of
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape, extents
from wgpu_backend.ops.reduce import reduction
from wgpu_backend.ops.shape.shapes import reshaped
from wgpu_backend.ops.shape.views import permuted

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Axis = int | tuple[int, ...] | None
_SUMMED = {BOOL: I32, I8: I32, I16: I32, I32: I32, U8: U32, U16: U32, U32: U32}


def axes_of(name: str, x: Node, axis: Axis) -> tuple[int, ...]:
    """Axes counted from the front; None is all."""
    if axis is None:
        return tuple(range(len(x.spec.shape)))
    return tuple(x.spec.axis(a, name) for a in extents(f"{name}: axis", axis))


def folded(
    op: Callable[..., Node],
    name: str,
    x: Node,
    axis: Axis,
    keepdims: bool,
    **options: Any,
) -> Node:
    """What an op that folds axes makes of a node with any number of axes."""
    axes = axes_of(name, x, axis)
    shape = x.spec.shape
    if len(shape) > MOST_AXES:
        x, axes = _in_front(x, axes), (1,)
    y = op(x, axes, **options)
    return reshaped(y, kept(shape, axes_of_shape(shape, axis), keepdims))


def axes_of_shape(shape: Shape, axis: Axis) -> tuple[int, ...]:
    """Axes of a shape counted from the front."""
    if axis is None:
        return tuple(range(len(shape)))
    return tuple(a % len(shape) for a in extents("axis", axis))


def _in_front(x: Node, axes: tuple[int, ...]) -> Node:
    """A node as (kept, folded)."""
    rest = [a for a in range(len(x.spec.shape)) if a not in axes]
    moved = permuted(x, *rest, *axes)
    count = 1
    for a in rest:
        count *= x.spec.shape[a]
    return reshaped(moved, (count, x.spec.size // count if count else 0))


def kept(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Shape without axes, or with 1 in their places."""
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def sum(
    x: Array,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
) -> Array:
    """Sum over axes, all by default.

    Parameters
    ----------
    x : (...), any numbers
    axis : int, tuple of int, or None
    keepdims : bool
        Leave the axes in the shape, as 1.
    dtype : DType or None
        In which numbers are added; None keeps floats, and takes 32 bits for integers.
    """
    node = as_node("sum", x)
    kind = _summed(node.spec.dtype) if dtype is None else dtype_of(dtype)
    return wrap(
        converted(folded(reduction.sum, "sum", converted(node, kind), axis, keepdims), kind)
    )


def _summed(dtype: DType) -> DType:
    return _SUMMED.get(dtype, dtype)


def mean(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """Mean over axes; integers are averaged in float32. See `sum`."""
    return _of_floats(reduction.mean, "mean", x, axis, keepdims)


def max(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """Largest value over axes; NaN where there is one. See `sum`."""
    return _extreme(reduction.max, "max", x, axis, keepdims)


def min(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
    """Smallest value over axes; NaN where there is one. See `sum`."""
    return _extreme(reduction.min, "min", x, axis, keepdims)


def _extreme(op: Callable[..., Node], name: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    node = as_node(name, x)
    return wrap(converted(folded(op, name, node, axis, keepdims), node.spec.dtype))


def var(x: Array, /, axis: Axis = None, keepdims: bool = False, *, ddof: float = 0) -> Array:
    """Variance over axes.

    Parameters
    ----------
    x, axis, keepdims
        As in `mean`.
    ddof : float
        Taken from the number of values that squares are divided by.
    """
    node = floating(as_node("var", x))
    count = 1
    for a in axes_of("var", node, axis):
        count *= node.spec.shape[a]
    y = folded(reduction.variance, "var", node, axis, keepdims)
    scaled = wrap(y) * (count / (count - ddof) if count > ddof else float("nan"))
    return scaled.astype(_float(node))


def std(x: Array, /, axis: Axis = None, keepdims: bool = False, *, ddof: float = 0) -> Array:
    """Square root of the variance over axes; see `var`."""
    from wgpu_backend.array.elementwise import sqrt

    return sqrt(var(x, axis, keepdims, ddof=ddof))


def _of_floats(op: Callable[..., Node], name: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    node = floating(as_node(name, x))
    return wrap(converted(folded(op, name, node, axis, keepdims), _float(node)))


def _float(x: Node) -> DType:
    return x.spec.dtype if x.spec.dtype in FLOATING else F32
