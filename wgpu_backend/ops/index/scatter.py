"""Ops that write at computed indices: scatter, slice_update_dynamic, put_along_axis.

Each gives a new value; see `wgpu_backend.ops.index.writing`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from wgpu_backend.dtypes import I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, extents
from wgpu_backend.ops.check import pad_to_4d, require, require_dtype, require_tensor
from wgpu_backend.ops.index.bits import putting, require_plain
from wgpu_backend.ops.index.taking import require_like
from wgpu_backend.ops.index.writing import fresh, require_writable
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import make_view


@op(dense=("x",), trusted=True)
def put_at(dst: Node, x: Node, *ids: Node, axes: Sequence[int], window: Shape) -> Launch:
    """Write windows at ids; see `scatter`.

    Parameters
    ----------
    dst : (...)
        Up to four axes of any strides.
    x : (count, values of a window)
        Of the dtype of `dst` and storage of its own.
    *ids : (count,), i32, dense; 1 to 4
        Where windows begin along the axis at the same place of `axes`.
    axes : sequence of int
        Counted from the front.
    window : tuple of int
        As many extents as `dst` has.

    Returns
    -------
    `dst` after the write.
    """
    require_plain("scatter", "x", dst)
    require_writable("scatter", dst)
    # The kernel binds four tensors of ids and reads COUNT of them.
    given = [*ids, *[ids[0]] * (4 - len(ids))]
    # The kernel has four axes, and those of the tensor are the last.
    missing = 4 - len(dst.spec.shape)
    return Launch(
        dst.spec,
        {"x": x, **dict(zip(("ids_a", "ids_b", "ids_c", "ids_d"), given, strict=True))},
        threads=x.spec.size,
        params={
            "size": x.spec.size,
            "window_size": math.prod(window),
            "window": pad_to_4d(window, 1),
            "axes": tuple([a + missing for a in axes] + [0] * (4 - len(axes))),
            "y_shape": pad_to_4d(dst.spec.shape, 1),
        },
        choices={**putting(dst.spec.dtype, "x"), "COUNT": len(ids)},
        into=dst,
        work=2 * x.spec.nbytes,
    )


@put_at.reference
def put_at_reference(
    dst: Array, x: Array, *ids: Array, axes: Sequence[int], window: Sequence[int]
) -> Array:
    """Write windows at ids."""
    values = x.reshape(len(x), *window)
    for k, offsets in itertools.product(range(len(x)), np.ndindex(*window)):
        at = list(offsets)
        for axis, places in zip(axes, ids, strict=True):
            start = int(places[k]) + (dst.shape[axis] if places[k] < 0 else 0)
            # A start outside moves the whole window outside, where nothing is written.
            at[axis] += start if 0 <= start < dst.shape[axis] else dst.shape[axis]
        if all(a < n for a, n in zip(at, dst.shape, strict=True)):
            dst[tuple(at)] = values[k][offsets]
    return dst


@op(dense=("x", "ids"), trusted=True)
def put_along(dst: Node, x: Node, ids: Node, *, axis: int) -> Launch:
    """Write values at ids, an id for each; see `put_along_axis`.

    Parameters
    ----------
    dst : (..., n, ...)
        Dense.
    x : (..., k, ...)
        Of the dtype of `dst` and storage of its own.
    ids : (..., k, ...)
        i32.
    axis : int
        Counted from the front.

    Returns
    -------
    `dst` after the write.
    """
    require_plain("put_along_axis", "x", dst)
    require_writable("put_along_axis", dst)
    return Launch(
        dst.spec,
        {"x": x, "ids": ids},
        threads=x.spec.size,
        params={
            "size": x.spec.size,
            "count": x.spec.shape[axis],
            "extent": dst.spec.shape[axis],
            "inner": math.prod(dst.spec.shape[axis + 1 :]),
        },
        choices=putting(dst.spec.dtype, "x"),
        into=dst,
        work=3 * x.spec.nbytes,
    )


@put_along.reference
def put_along_reference(dst: Array, x: Array, ids: Array, *, axis: int) -> Array:
    """Write values at ids, an id for each."""
    for at in np.ndindex(*ids.shape):
        extent = dst.shape[axis]
        # Negative ids count from the end, as in NumPy.
        place = int(ids[at]) + (extent if ids[at] < 0 else 0)
        if 0 <= place < extent:
            dst[(*at[:axis], place, *at[axis + 1 :])] = x[at]
    return dst


def _put_windows(
    name: str, x: Node, updates: Node, ids: Sequence[Node], axes: Sequence[int]
) -> Node:
    """Return `x` with windows written at (count,) ids; `updates` is (count, window)."""
    found = [x.spec.axis(a, name) for a in axes]
    require(
        0 < len(ids) == len(found) == len(set(found)),
        ShapeError,
        f"{name}: {len(ids)} tensors of ids, axes {tuple(axes)}, needs one for each axis",
    )
    window = updates.spec.shape[1:]
    require(
        all(n <= m for n, m in zip(window, x.spec.shape, strict=True)),
        ShapeError,
        f"{name}: windows are {window}, x is {x.spec.shape}, needs no more along any axis",
    )
    # The operand keeps its values.
    whole = fresh(x)
    flat = reshape_node(updates, (updates.spec.shape[0], math.prod(window)))
    written = put_at(whole, flat, *ids, axes=found, window=window)
    return make_view(written, whole.spec)


def scatter(x: Node, ids: Sequence[Node], updates: Node, axes: Sequence[int]) -> Node:
    """Replace windows of a tensor at ids.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    ids : sequence of (...) tensors, i32, one shape
        Where windows begin along each of `axes`; below zero counts from the end.
    updates : (ids..., window...), of the dtype of `x`
        A window has as many axes as `x`; it begins at 0 along those that have no ids. Values that
        would lie outside are dropped; of windows that overlap either may win.

    Returns
    -------
    Like `x`, dense, a new value.

    Raises
    ------
    ShapeError
        Shapes do not go together.
    """
    require_tensor("scatter", "updates", updates)
    for node in ids if isinstance(ids, list | tuple) else (ids,):
        require_tensor("scatter", "ids", node)
    axes = extents("scatter: axes", axes)
    shape = ids[0].spec.shape if ids else ()
    for node in ids:
        require_dtype("scatter", "ids", node, (I32,))
    require(
        all(node.spec.shape == shape for node in ids)
        and updates.spec.shape[: len(shape)] == shape
        and len(updates.spec.shape) == len(shape) + len(x.spec.shape),
        ShapeError,
        f"scatter: updates is {updates.spec.shape}, ids {[n.spec.shape for n in ids]}, x "
        f"{x.spec.shape}, needs the axes of one tensor of ids and then those of x",
    )
    require_dtype("scatter", "updates", updates, (x.spec.dtype,))
    count = math.prod(shape)
    windows = reshape_node(updates, (count, *updates.spec.shape[len(shape) :]))
    flat = [reshape_node(node, (count,)) for node in ids]
    return _put_windows("scatter", x, windows, flat, axes)


def slice_update_dynamic(x: Node, update: Node, starts: Node, axes: Sequence[int]) -> Node:
    """Replace a window of a tensor at a computed place.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    update : (...)
        Of the dtype of `x` and as many axes, none longer.
    starts : (n,), i32
        Where the window begins along each of `axes`; below zero counts from the end, and values
        that would lie outside are dropped.
    axes : sequence of int
        The window begins at 0 along the others.

    Returns
    -------
    Like `x`, dense, a new value.

    Raises
    ------
    ShapeError
        Shapes do not go together.
    """
    require_dtype("slice_update_dynamic", "starts", starts, (I32,))
    require_dtype("slice_update_dynamic", "update", update, (x.spec.dtype,))
    require_tensor("slice_update_dynamic", "starts", starts)
    axes = extents("slice_update_dynamic: axes", axes)
    require(
        starts.spec.shape == (len(axes),) and len(update.spec.shape) == len(x.spec.shape),
        ShapeError,
        f"slice_update_dynamic: starts is {starts.spec.shape}, update {update.spec.shape}, needs "
        f"({len(axes)},) and {len(x.spec.shape)} axes",
    )
    ids = [make_view(starts, specs.slice_axis(starts.spec, 0, k, k + 1)) for k in range(len(axes))]
    return _put_windows(
        "slice_update_dynamic", x, reshape_node(update, (1, *update.spec.shape)), ids, axes
    )


def put_along_axis(x: Node, ids: Node, values: Node, axis: int) -> Node:
    """Replace values along an axis, with an id for each.

    Parameters
    ----------
    x : (..., n, ...)
        Any plain dtype.
    ids : (..., k, ...), i32, all other extents as in `x`
        Ids below zero count from the end; ids outside write nothing, and of equal ids either may
        win.
    values : as `ids`, of the dtype of `x`

    Returns
    -------
    Like `x`, dense, a new value.

    Raises
    ------
    ShapeError
        Shapes do not go together.
    """
    axis = x.spec.axis(axis, "put_along_axis")
    require_like("put_along_axis", x, ids, axis)
    require_dtype("put_along_axis", "values", values, (x.spec.dtype,))
    require(
        values.spec.shape == ids.spec.shape,
        ShapeError,
        f"put_along_axis: values is {values.spec.shape}, ids is {ids.spec.shape}",
    )
    shape = x.spec.shape
    # Three axes do for any tensor: those before, the axis, those after.
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    whole, given, own = (
        reshape_node(node, (outer, node.spec.shape[axis], inner)) for node in (x, values, ids)
    )
    return reshape_node(put_along(fresh(whole), given, own, axis=1), shape)
