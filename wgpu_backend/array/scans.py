"""Running sums, products and extremes along an axis, and differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.base import wrap
from wgpu_backend.array.conversion import convert, flatten_node
from wgpu_backend.array.promotion import as_node, call_complex, to_floats
from wgpu_backend.array.reductions import sum_dtype
from wgpu_backend.dtypes import BOOL, COMPLEX64, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import slice_axis
from wgpu_backend.ops.reduce import scan
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import make_view

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def cumsum(
    x: Array,
    /,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    dtype: Any = None,
) -> Array:
    """Compute the running sum along an axis, or through all values where it is None.

    Parameters
    ----------
    x : (...), any numbers
    reverse : bool
        Begin at the end.
    inclusive : bool
        Include the value itself; otherwise the first result is the neutral element: 0 for a sum.
    dtype : DType or None
        Type of the sum; None keeps floats, and takes 32 bits for integers.
    """
    return _scan(scan.cumsum, "cumsum", x, axis, reverse, inclusive, dtype)


def cumprod(
    x: Array,
    /,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    dtype: Any = None,
) -> Array:
    """Compute the running product along an axis; see `cumsum`."""
    return _scan(scan.cumprod, "cumprod", x, axis, reverse, inclusive, dtype)


def cummax(
    x: Array, /, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True
) -> Array:
    """Return the largest value so far along an axis, NaN from the first NaN on; see `cumsum`."""
    return _scan(scan.cummax, "cummax", x, axis, reverse, inclusive, x.dtype)


def cummin(
    x: Array, /, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True
) -> Array:
    """Return the smallest value so far along an axis, NaN from the first NaN on; see `cumsum`."""
    return _scan(scan.cummin, "cummin", x, axis, reverse, inclusive, x.dtype)


def logcumsumexp(
    x: Array, /, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True
) -> Array:
    """Compute the logarithm of the running sum of exponentials; see `cumsum`."""
    floats = wrap(to_floats(as_node("logcumsumexp", x)))
    return _scan(scan.logcumsumexp, "logcumsumexp", floats, axis, reverse, inclusive, floats.dtype)


def _scan(
    op: Callable[..., Node],
    name: str,
    x: Array,
    axis: int | None,
    reverse: bool,
    inclusive: bool,
    dtype: Any,
) -> Array:
    node = as_node(name, x)
    kind: DType = sum_dtype(node, dtype)
    row, along = (flatten_node(node), 0) if axis is None else (node, axis)
    if not row.spec.shape:
        row, along = reshape_node(row, (1,)), 0
    # Here, as the functions of complex numbers take a type and an axis that are settled.
    if kind == COMPLEX64:
        return call_complex(name, wrap(convert(row, kind)), along, reverse, inclusive)
    found = op(convert(row, kind), along, reverse=reverse, exclusive=not inclusive)
    return wrap(convert(found, kind))


def cumulative_sum(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
) -> Array:
    """Compute `cumsum` as the array API spells it; `include_initial` prepends a 0."""
    return _cumulative(cumsum, x, axis, dtype, 0 if include_initial else None)


def cumulative_prod(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
) -> Array:
    """Compute `cumprod` as the array API spells it; `include_initial` prepends a 1."""
    return _cumulative(cumprod, x, axis, dtype, 1 if include_initial else None)


def _cumulative(
    scanned: Callable[..., Array], x: Array, axis: int | None, dtype: Any, first: int | None
) -> Array:
    from wgpu_backend.array.creation import full
    from wgpu_backend.array.manipulation import concat

    if axis is None and x.ndim > 1:
        raise ShapeError(f"cumulative: {x.shape} has {x.ndim} axes, needs `axis`")
    along = 0 if axis is None else axis
    found = scanned(x, along, dtype=dtype)
    if first is None:
        return found
    shape = list(found.shape)
    shape[along] = 1
    return concat([full(tuple(shape), first, found.dtype, device=x.session), found], axis=along)


def diff(
    x: Array,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Array | None = None,
    append: Array | None = None,
) -> Array:
    """Compute differences of neighbours along an axis, `n` times.

    Parameters
    ----------
    x : (..., m, ...), any numbers; of bools, whether they differ
    prepend, append : arrays or None
        Joined to `x` first; they have its other extents.

    Returns
    -------
    (..., m - n, ...), of the type of `x`.
    """
    from wgpu_backend.array.manipulation import concat
    from wgpu_backend.array.operators import not_equal, subtract

    node = as_node("diff", x)
    if not node.spec.shape or n < 0:
        raise ShapeError(f"diff: {node.spec.shape}, {n} times, needs an axis, and 0 or more times")
    parts = [p for p in (prepend, x, append) if p is not None]
    joined = concat(parts, axis=axis) if len(parts) > 1 else wrap(x.node)
    for _ in range(n):
        node = joined.node
        # max and min: an axis of 0 values stays one of 0.
        at, extent = node.spec.axis(axis, "diff"), node.spec.shape[axis]
        after, before = (
            wrap(make_view(node, slice_axis(node.spec, at, a, max(a, b))))
            for a, b in ((min(1, extent), extent), (0, extent - 1))
        )
        joined = (not_equal if joined.dtype == BOOL else subtract)(after, before)
    return joined
