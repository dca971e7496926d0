"""Ops that rearrange values by copies and views: roll, tile, repeat_each, diagonal, diag_of."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec, extents
from wgpu_backend.ops.check import Axes, normalise_axes, require, require_rank
from wgpu_backend.ops.index.bits import require_plain
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.shaping import pad_ext, take_window
from wgpu_backend.ops.shape.triangular import diag
from wgpu_backend.ops.shape.views import make_view


def roll(x: Node, shifts: int | Sequence[int], axes: Axes = None) -> Node:
    """Move values along axes; those that leave at one end come in at the other.

    Parameters
    ----------
    x : (...)
        Up to eight axes, any plain dtype.
    shifts : int or sequence of int
        Places to move by; one for all axes or one for each.
    axes : int, sequence of int, or None
        None moves through all values in row-major order.

    Returns
    -------
    Like `x`, dense.

    Raises
    ------
    ShapeError
        There is no such axis, or shifts and axes are not as many.
    """
    require_plain("roll", "x", x)
    if axes is None:
        flat = roll(reshape_node(x, (x.spec.size,)), sum(extents("roll: shifts", shifts)), 0)
        return reshape_node(flat, x.spec.shape)
    # An axis may be named twice, and is then moved twice.
    found = [x.spec.axis(a, "roll") for a in extents("roll: axes", axes)]
    by = extents("roll: shifts", shifts)
    by = by * len(found) if len(by) == 1 else by
    require(
        len(by) == len(found),
        ShapeError,
        f"roll: {len(by)} shifts, {len(found)} axes, needs one for each",
    )
    if not x.spec.size:
        return x
    starts = [0] * len(x.spec.shape)
    for axis, shift in zip(found, by, strict=True):
        # A shift by 1 begins with the last value.
        starts[axis] = (starts[axis] - shift) % x.spec.shape[axis]
    return take_window(x, starts, x.spec.shape, repeated=True)


def tile(x: Node, *times: int | Sequence[int]) -> Node:
    """Repeat a tensor as a whole along its axes.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    *times : int
        How often along each axis, the last one last; axes it lacks come first.

    Returns
    -------
    Dense tensor of the dtype of `x`.

    Raises
    ------
    ShapeError
        A number is negative, or there are more than eight axes after joining those that step as
        one.
    """
    counts = extents("tile", times)
    rank = max(len(counts), len(x.spec.shape))
    counts = (1,) * (rank - len(counts)) + counts
    missing = rank - len(x.spec.shape)
    shape, strides = (1,) * missing + x.spec.shape, (0,) * missing + x.spec.strides
    return _repeat("tile", x, counts, shape, strides, whole=True)


def repeat_each(x: Node, repeats: int, axis: int) -> Node:
    """Repeat each value along an axis: ``a a b b`` of ``a b``.

    Parameters
    ----------
    x : (..., n, ...)
        Any plain dtype.

    Returns
    -------
    (..., n * repeats, ...), dense, of the dtype of `x`.

    Raises
    ------
    ShapeError
        As in `tile`, or there is no such axis.
    """
    axis = x.spec.axis(axis, "repeat_each")
    counts = tuple(repeats if a == axis else 1 for a in range(len(x.spec.shape)))
    return _repeat("repeat_each", x, counts, x.spec.shape, x.spec.strides, whole=False)


def _repeat(
    name: str,
    x: Node,
    counts: Sequence[int],
    shape: Sequence[int],
    strides: Sequence[int],
    *,
    whole: bool,
) -> Node:
    """Copy a view in which each axis has one of step 0 before or after it."""
    require_plain(name, "x", x)
    require(
        all(count >= 0 for count in counts),
        ShapeError,
        f"{name}: {tuple(counts)} times, needs 0 or more",
    )
    axes: list[tuple[int, int]] = []
    for count, extent, stride in zip(counts, shape, strides, strict=True):
        # An axis of step 0 repeats: the one that comes first, the whole; the one after, each value.
        own = [(count, 0), (extent, stride)]
        axes += own if whole else own[::-1]
    seen = Spec(tuple(n for n, _ in axes), x.spec.dtype, tuple(s for _, s in axes), x.spec.offset)
    wanted = tuple(count * extent for count, extent in zip(counts, shape, strict=True))
    return reshape_node(contiguous(make_view(x, seen)), wanted)


def diagonal(x: Node, k: int = 0, axis1: int = 0, axis2: int = 1) -> Node:
    """View a diagonal of each matrix, as the last axis.

    Parameters
    ----------
    x : (..., rows, ..., cols, ...)
        Any plain dtype.
    k : int
        0 is the main diagonal, above 0 they lie above it.
    axis1, axis2 : int
        Of rows and of columns.

    Returns
    -------
    View without the two axes, the diagonal last; of no values where it lies outside.

    Raises
    ------
    ShapeError
        There is no such axis, or both are one.
    """
    require_plain("diagonal", "x", x)
    rows, cols = normalise_axes("diagonal", x.spec, (axis1, axis2))
    spec = x.spec
    down, right = max(-k, 0), max(k, 0)
    length = max(min(spec.shape[rows] - down, spec.shape[cols] - right), 0)
    kept = [a for a in range(len(spec.shape)) if a not in (rows, cols)]
    # An empty diagonal may lie outside the storage.
    start = down * spec.strides[rows] + right * spec.strides[cols] if length else 0
    return make_view(
        x,
        Spec(
            (*(spec.shape[a] for a in kept), length),
            spec.dtype,
            # A step along the diagonal is one along each axis.
            (*(spec.strides[a] for a in kept), spec.strides[rows] + spec.strides[cols]),
            spec.offset + start,
        ),
    )


def numpy_diag(x: Node, k: int = 0) -> Node:
    """Make a matrix with a vector on one of its diagonals, or view the diagonal of a matrix.

    Parameters
    ----------
    x : (n,) or (rows, cols), any plain dtype
    k : int
        As in `diagonal`.

    Returns
    -------
    (n + abs(k), n + abs(k)), or a view of the diagonal.

    Raises
    ------
    ShapeError
        There are other axes.
    """
    require_rank("diag_of", "x", x, 1, 2)
    if len(x.spec.shape) == 2:
        return diagonal(x, k)
    square = diag(x)
    # Zeros before the rows or the columns move the diagonal.
    return pad_ext(square, (max(-k, 0), max(k, 0)), (max(k, 0), max(-k, 0))) if k else square
