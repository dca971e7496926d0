"""Functions that order values, choose by order, or find the distinct values of an array.

Sets are computed on the device; the host reads how many values there are, since shapes depend on
it. NaN equals nothing, so each NaN is a value of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from wgpu_backend.array.base import wrap
from wgpu_backend.array.conversion import flatten_node
from wgpu_backend.array.creation import arange, full, ones
from wgpu_backend.array.indexing import find_true
from wgpu_backend.array.manipulation import concat
from wgpu_backend.array.operators import equal, minimum
from wgpu_backend.array.promotion import as_node, promote_operands, to_floats
from wgpu_backend.array.scans import cumsum
from wgpu_backend.array.searching import put_along_axis, searchsorted, take
from wgpu_backend.dtypes import BOOL, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.sampling import sorting

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def sort(
    x: Array, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True
) -> Array:
    """Sort values along an axis, or all values where it is None.

    NaN counts as larger than any number. Equal values always keep their order: `stable` changes
    nothing.
    """
    node, at = _along("sort", x, axis)
    return wrap(sorting.sort(node, at, descending=descending))


def argsort(
    x: Array, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True
) -> Array:
    """Return indices along an axis in the order of its values, int32; see `sort`."""
    node, at = _along("argsort", x, axis)
    return wrap(sorting.argsort(node, at, descending=descending))


def partition(x: Array, /, kth: int, axis: int | None = -1) -> Array:
    """Put the `kth` smallest value at its sorted position; here all values are sorted."""
    node, at = _check_kth("partition", x, kth, axis)
    return wrap(sorting.sort(node, at))


def argpartition(x: Array, /, kth: int, axis: int | None = -1) -> Array:
    """Return indices along an axis in the order of `partition`, int32."""
    node, at = _check_kth("argpartition", x, kth, axis)
    return wrap(sorting.argsort(node, at))


def topk(x: Array, /, k: int, axis: int | None = -1) -> Array:
    """Return the `k` largest values along an axis, in ascending order."""
    node, at = _along("topk", x, axis)
    extent = node.spec.shape[at]
    if not 0 <= k <= extent:
        raise ShapeError(f"topk: k is {k}, axis {axis} of {x.shape} has {extent} values")
    from wgpu_backend.array.manipulation import flip

    # The op needs at least one value.
    if k == 0:
        return wrap(node)[(slice(None),) * (at % len(node.spec.shape)) + (slice(0, 0),)]
    # The op gives the largest first, MLX the smallest.
    return flip(wrap(sorting.topk(node, k, at)), axis=at)


def median(x: Array, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Return the middle value over axes, or the mean of the two in the middle.

    Integers are averaged in float32. NaN where one of the values is.
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
        raise ShapeError(f"median: axes {axes} of {x.shape} have no values, needs at least 1")
    low, high = ordered[..., (count - 1) // 2], ordered[..., count // 2]
    # Halves are added, since the sum of two f16 may overflow.
    halves = low if count % 2 else low * 0.5 + high * 0.5
    # NaN is sorted last.
    middle = where(isnan(ordered[..., -1]), math.nan, halves)
    return middle.reshape(reduced_shape(x.shape, axes, keepdims))


def _along(name: str, x: Array, axis: int | None) -> tuple[Node, int]:
    """Return a node and an axis to sort along: all values in a row where it is None."""
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


class UniqueAll(NamedTuple):
    """The result of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`."""

    values: Array
    inverse_indices: Array


class _Runs(NamedTuple):
    """Sorted values, and the places where runs of equal values begin."""

    ordered: Array
    order: Array
    first: Array  # bool: true for the first value of each run
    begin: Array  # places of first values


def _runs(name: str, x: Array) -> _Runs:
    row = wrap(flatten_node(as_node(name, x)))
    order = argsort(row)
    ordered = take(row, order)
    # The first value begins a run, if there is one.
    begins = ones((min(row.size, 1),), BOOL, device=x.session)
    first = concat([begins, ordered[1:] != ordered[:-1]])
    return _Runs(ordered, order, first, wrap(find_true(first.node)[0]))


def _counts(x: Array, runs: _Runs) -> Array:
    end = arange(x.size, x.size + 1, dtype=I32, device=x.session)
    return concat([runs.begin[1:], end])[: runs.begin.size] - runs.begin


def _inverse(x: Array, runs: _Runs) -> Array:
    # The number of a run, written back to the places that its values came from.
    numbers = cumsum(runs.first.astype(I32), 0) - 1
    return put_along_axis(runs.order, runs.order, numbers, axis=0).reshape(x.shape)


def unique_values(x: Array, /) -> Array:
    """Return the distinct values of an array, ascending."""
    runs = _runs("unique_values", x)
    return take(runs.ordered, runs.begin)


def unique_counts(x: Array, /) -> UniqueCounts:
    """Return the distinct values of an array, and how often each occurs."""
    runs = _runs("unique_counts", x)
    return UniqueCounts(take(runs.ordered, runs.begin), _counts(x, runs))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Return the distinct values of an array, and the index of each value among them."""
    runs = _runs("unique_inverse", x)
    return UniqueInverse(take(runs.ordered, runs.begin), _inverse(x, runs))


def unique_all(x: Array, /) -> UniqueAll:
    """Return the distinct values with their first indices, the inverse and the counts."""
    runs = _runs("unique_all", x)
    values, first = take(runs.ordered, runs.begin), take(runs.order, runs.begin)
    return UniqueAll(values, first, _inverse(x, runs), _counts(x, runs))


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Return whether each value of `x1` is in `x2`; `invert` negates. NaN equals nothing."""
    wanted, among = (wrap(n) for n in promote_operands("isin", x1, x2))
    if not among.size:
        return full(wanted.shape, invert, BOOL, device=wanted.session)
    ordered = sort(among, axis=None)
    # A value above all is searched after the last.
    at = minimum(searchsorted(ordered, wanted), among.size - 1)
    found = equal(take(ordered, at), wanted)
    return ~found if invert else found
