"""Functions that order values along an axis, and choose by order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wgpu_backend.array.conversion import flatten_node
from wgpu_backend.array.core import wrap
from wgpu_backend.array.lifting import as_node, to_floats
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.sampling import sorting

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def sort(
    x: Array, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True
) -> Array:
    """Values along an axis in their order, or all values where it is None.

    NaN counts as larger than any number; equal values keep their order, whatever `stable` says.
    """
    node, at = _along("sort", x, axis)
    return wrap(sorting.sort(node, at, descending=descending))


def argsort(
    x: Array, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True
) -> Array:
    """Places along an axis in the order of its values, int32; see `sort`."""
    node, at = _along("argsort", x, axis)
    return wrap(sorting.argsort(node, at, descending=descending))


def partition(x: Array, /, kth: int, axis: int | None = -1) -> Array:
    """Values with the `kth` smallest in its place, smaller ones before it: they are sorted."""
    node, at = _check_kth("partition", x, kth, axis)
    return wrap(sorting.sort(node, at))


def argpartition(x: Array, /, kth: int, axis: int | None = -1) -> Array:
    """Places along an axis in the order of `partition`, int32."""
    node, at = _check_kth("argpartition", x, kth, axis)
    return wrap(sorting.argsort(node, at))


def topk(x: Array, /, k: int, axis: int | None = -1) -> Array:
    """The `k` largest values along an axis, in ascending order."""
    node, at = _along("topk", x, axis)
    extent = node.spec.shape[at]
    if not 0 <= k <= extent:
        raise ShapeError(f"topk: k is {k}, axis {axis} of {x.shape} has {extent} values")
    from wgpu_backend.array.moving import flip

    if k == 0:
        return wrap(node)[(slice(None),) * (at % len(node.spec.shape)) + (slice(0, 0),)]
    return flip(wrap(sorting.topk(node, k, at)), axis=at)


def median(x: Array, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Middle value over axes, or the mean of the two in the middle; integers in float32.

    NaN where one of the values is.
    """
    from wgpu_backend.array.elementwise import isnan
    from wgpu_backend.array.operators import where
    from wgpu_backend.array.reductions import normalise_axes, reduced_shape

    node = to_floats(as_node("median", x))
    axes = normalise_axes("median", node, axis)
    rest = [a for a in range(x.ndim) if a not in axes]
    rows = wrap(node).transpose(*rest, *axes).reshape(*(x.shape[a] for a in rest), -1)
    ordered = sort(rows)
    count = ordered.shape[-1]
    if not count:
        raise ShapeError(f"median: axes {axes} of {x.shape} have no values")
    low, high = ordered[..., (count - 1) // 2], ordered[..., count // 2]
    halves = low if count % 2 else low * 0.5 + high * 0.5  # the sum of two f16 may overflow
    middle = where(isnan(ordered[..., -1]), math.nan, halves)  # NaN is the last of all
    return middle.reshape(reduced_shape(x.shape, axes, keepdims))


def _along(name: str, x: Array, axis: int | None) -> tuple[Node, int]:
    """A node with an axis to go along: all values in a row where it is None."""
    node = as_node(name, x)
    if axis is None or not node.spec.shape:
        return flatten_node(node), 0
    return node, node.spec.axis(axis, name)


def _check_kth(name: str, x: Array, kth: int, axis: int | None) -> tuple[Node, int]:
    node, at = _along(name, x, axis)
    extent = node.spec.shape[at]
    if not -extent <= kth < extent:
        raise ShapeError(f"{name}: kth is {kth}, axis {axis} of {x.shape} has {extent} values")
    return node, at
