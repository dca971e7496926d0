"""Functions that read and write values by index, and find the indices of values."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.base import ArrayBase, make_node, wrap
from wgpu_backend.array.conversion import convert, flatten_node
from wgpu_backend.array.indexing import find_true
from wgpu_backend.array.promotion import as_node, common_shape, normalise_axis, promote_operands
from wgpu_backend.array.types import INTEGERS
from wgpu_backend.dtypes import BOOL, I32
from wgpu_backend.errors import DTypeError, OptionError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.index import accumulating, scatter, taking
from wgpu_backend.ops.sampling import searching
from wgpu_backend.ops.shape import creation
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import expand

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def as_ids(name: str, ids: Any, x: Node) -> Node:
    """Return a node of ids in int32; DTypeError unless they are integers."""
    session = wrap(x).session
    node = ids.node if isinstance(ids, ArrayBase) else make_node(np.asarray(ids), None, session)
    if node.spec.dtype not in INTEGERS:
        raise DTypeError(f"{name}: ids are {node.spec.dtype}, needs integers")
    return convert(node, I32)


def take(x: Array, indices: Any, /, axis: int | None = None) -> Array:
    """Take values along an axis by index, or from all values where the axis is None.

    Parameters
    ----------
    x : (..., n, ...)
    indices : integers of any shape
        Ids below 0 count from the end; ids outside give 0.

    Returns
    -------
    Array with the axes of `indices` in place of that axis.
    """
    node = as_node("take", x)
    ids = as_ids("take", indices, node)
    node, at = (
        (flatten_node(node), 0) if axis is None else (node, normalise_axis("take", node, axis))
    )
    shape = node.spec.shape
    before, after = shape[:at], shape[at + 1 :]
    three = reshape_node(node, (math.prod(before), shape[at], math.prod(after)))
    found = taking.take_axes(three, flatten_node(ids), 1)
    return wrap(reshape_node(found, (*before, *ids.spec.shape, *after)))


def take_along_axis(x: Array, indices: Any, /, axis: int | None = -1) -> Array:
    """Take values along an axis, with an index for each result; other axes of both broadcast."""
    node = as_node("take_along_axis", x)
    values, ids, at = _align(
        "take_along_axis", node, as_ids("take_along_axis", indices, node), axis
    )
    return wrap(taking.take_along_axis(values, ids, at))


def _align(name: str, x: Node, ids: Node, axis: int | None) -> tuple[Node, Node, int]:
    """Broadcast values and ids along all axes but one."""
    if axis is None:
        return flatten_node(x), flatten_node(ids), 0
    at = normalise_axis(name, x, axis)
    if len(x.spec.shape) != len(ids.spec.shape):
        raise ShapeError(f"{name}: ids are {ids.spec.shape}, the array is {x.spec.shape}")
    mine, theirs = list(x.spec.shape), list(ids.spec.shape)
    extent, count = mine[at], theirs[at]
    mine[at] = theirs[at] = 1
    common = list(common_shape(name, [tuple(mine), tuple(theirs)]))
    wide, many = list(common), list(common)
    wide[at], many[at] = extent, count
    return expand(x, tuple(wide)), expand(ids, tuple(many)), at


def put_along_axis(x: Array, indices: Any, values: Any, /, axis: int | None = -1) -> Array:
    """Replace values along an axis, with an index for each.

    Parameters
    ----------
    x : (..., n, ...)
    indices : (..., k, ...), integers; of equal ids either may win
    values : number, or array that broadcasts to `indices`
    axis : int or None
        None counts through all values.
    """
    dst, ids, given, at = _prepare_write("put_along_axis", x, indices, values, axis)
    return wrap(reshape_node(scatter.put_along_axis(dst, ids, given, at), x.shape))


def scatter_add_axis(x: Array, indices: Any, values: Any, /, axis: int | None = -1) -> Array:
    """Add values along an axis, with an index for each; values of equal indices add up."""
    dst, ids, given, at = _prepare_write("scatter_add_axis", x, indices, values, axis)
    return wrap(reshape_node(accumulating.fold_along_axis(dst, ids, given, at, "add"), x.shape))


def _prepare_write(
    name: str, x: Array, indices: Any, values: Any, axis: int | None
) -> tuple[Node, Node, Node, int]:
    node = as_node(name, x)
    dst, ids, at = _align(name, node, as_ids(name, indices, node), axis)
    # Broadcasting may not enlarge the array that is written to.
    if dst.spec.size != node.spec.size:
        raise ShapeError(f"{name}: ids are {ids.spec.shape}, the array is {node.spec.shape}")
    given = values.node if isinstance(values, ArrayBase) else promote_operands(name, x, values)[1]
    given = convert(given, node.spec.dtype)
    if common_shape(name, [given.spec.shape, ids.spec.shape]) != ids.spec.shape:
        raise ShapeError(f"{name}: values are {given.spec.shape}, ids are {ids.spec.shape}")
    return dst, contiguous(ids), contiguous(expand(given, ids.spec.shape)), at


def searchsorted(
    x1: Array, x2: Any, /, *, side: str = "left", sorter: Array | None = None
) -> Array:
    """Find the indices at which to insert values into sorted ones in order, int32.

    Parameters
    ----------
    x1 : (n,), ascending, or in the order of `sorter`
    x2 : any shape
    side : str
        Before equal values with ``left``, after them with ``right``.
    sorter : (n,) integers or None
        Places of `x1` in its order, as `argsort` gives.
    """
    ordered, wanted = promote_operands("searchsorted", x1, x2)
    if sorter is not None:
        ordered = take(wrap(ordered), sorter, axis=0).node
    if side not in ("left", "right"):
        raise OptionError(f"searchsorted: side is {side!r}, needs 'left' or 'right'")
    return wrap(searching.searchsorted(contiguous(ordered), contiguous(wanted), side))


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """Find the values that are not 0: an int32 array for each axis, in row-major order.

    The host reads how many there are: the shape of the result depends on it.
    """
    node = as_node("nonzero", x)
    if not node.spec.shape:
        raise ShapeError("nonzero: an array without axes has no places; reshape it to (1,)")
    return tuple(wrap(ids) for ids in find_true(convert(node, BOOL)))


def argwhere(x: Array, /) -> Array:
    """Find the values that are not 0, (count, axes), int32; see `nonzero`."""
    from wgpu_backend.array.manipulation import stack

    return stack(list(nonzero(x)), axis=1)


def slice(x: Array, start: Any, axes: Sequence[int], slice_size: Sequence[int]) -> Array:
    """Return a window of an array; its start may be an array.

    Parameters
    ----------
    x : (...)
    start : (n,) integers
        Start of the window along each of `axes`.
    slice_size : sequence of int
        Extents of the window along all axes. Values outside the array are 0.
    """
    node = as_node("slice", x)
    begin = as_ids("slice", start, node)
    if begin.spec.shape != (len(axes),) or len(slice_size) != x.ndim:
        raise ShapeError(
            f"slice: start is {begin.spec.shape}, slice_size {tuple(slice_size)}, needs "
            f"({len(axes)},) and {x.ndim} extents"
        )
    window = wrap(node)
    # Axes with a fixed start are cut by views, which costs nothing.
    for axis, extent in enumerate(slice_size):
        if axis not in [a % x.ndim for a in axes]:
            window = window[(builtins.slice(None),) * axis + (builtins.slice(0, extent),)]
    for i, axis in enumerate(axes):
        at = axis % x.ndim
        # The op, not the function, whose module imports this one by way of `manipulation`.
        steps = creation.arange.add_to(x.session, start=0, stop=slice_size[at], step=1, dtype=I32)
        ids = wrap(begin)[i] + wrap(steps)
        window = take(window, ids, axis=at)
    return window


def slice_update(x: Array, update: Array, start: Any, axes: Sequence[int]) -> Array:
    """Replace a window of an array; its start may be an array.

    Parameters
    ----------
    x : (...)
    update : (...), as many axes, none longer
    start : (n,) integers
        Start of the window along each of `axes`; values that would lie outside are dropped.
    """
    node = as_node("slice_update", x)
    begin = as_ids("slice_update", start, node)
    given = convert(as_node("slice_update", update), node.spec.dtype)
    return wrap(scatter.slice_update_dynamic(node, given, begin, [a % x.ndim for a in axes]))
