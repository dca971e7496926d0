"""Functions that put values in other places: flip, roll, tile, repeat, pad; views of storage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.conversion import flatten_node
from wgpu_backend.array.core import Core, wrap
from wgpu_backend.array.lifting import as_node, normalise_axis
from wgpu_backend.dtypes import as_dtype
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Extents, Spec, dense_strides, extents
from wgpu_backend.ops.conv import padding
from wgpu_backend.ops.shape import copying, triangular
from wgpu_backend.ops.shape import moving as ops
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import make_view

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def flip(x: Array, /, *, axis: Extents | None = None) -> Array:
    """Order of values along axes reversed, along all where it is None."""
    node = as_node("flip", x)
    return wrap(copying.flip(node, axes=axis) if node.spec.shape else node)


def roll(x: Array, /, shift: Extents, axis: Extents | None = None) -> Array:
    """Values moved along axes, those that leave at one end coming in at the other."""
    node = as_node("roll", x)
    if not node.spec.shape:
        return wrap(node)
    if axis is not None:
        places, moves = extents("roll: axis", axis), extents("roll: shift", shift)
        axis = places * len(moves) if len(places) == 1 else places
        shift = moves
    return wrap(ops.roll(node, shift, axis))


def tile(x: Array, repetitions: Extents, /) -> Array:
    """Repeat an array as a whole along its axes; axes that it lacks come first."""
    return wrap(ops.tile(as_node("tile", x), extents("tile", repetitions)))


def repeat(x: Array, repeats: Any, /, axis: int | None = None) -> Array:
    """Repeat each value along an axis, or of all values where it is None.

    Parameters
    ----------
    x : (...)
    repeats : int, or array (n,) of integers
        How often, for all or for each place along the axis. The host reads the numbers of an array
        on a device: the shape of the result depends on them.
    axis : int or None
    """
    node = as_node("repeat", x)
    node, at = (
        (flatten_node(node), 0) if axis is None else (node, normalise_axis("repeat", node, axis))
    )
    counts = np.asarray(repeats.numpy() if isinstance(repeats, Core) else repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise ShapeError(f"repeat: {repeats!r} times, needs whole numbers of 0 or more")
    if counts.size == 1:
        return wrap(ops.repeat_each(node, int(counts.flat[0]), at))
    extent = node.spec.shape[at]
    if counts.size != extent:
        raise ShapeError(f"repeat: {counts.size} numbers, axis {at} has {extent} values")
    from wgpu_backend.array.searching import take

    return take(wrap(node), np.repeat(np.arange(extent, dtype=np.int32), counts), axis=at)


def pad(
    x: Array,
    pad_width: int | tuple[int, int] | Sequence[tuple[int, int]],
    mode: Any = "constant",
    constant_values: Any = 0,
) -> Array:
    """Values added in front and behind along axes.

    Parameters
    ----------
    x : (...)
    pad_width : int, (int, int), or a pair for each axis
        How many before and behind; one number or pair is for all axes.
    mode : str
        ``constant``, ``edge``, ``reflect``, ``symmetric`` or ``wrap``; see
        `wgpu_backend.ops.conv.padding.pad_mode`.
    constant_values : number, or array of one
        Around values with ``constant``. The host reads an array.
    """
    node = as_node("pad", x)
    value = constant_values.item() if isinstance(constant_values, Core) else constant_values
    return wrap(padding.pad_mode(node, _pairs(pad_width, x.ndim), mode, value))


def _pairs(width: Any, rank: int) -> list[tuple[int, int]]:
    if isinstance(width, int):
        return [(width, width)] * rank
    given = list(width)
    if given and all(isinstance(v, int) for v in given):
        return [(given[0], given[-1])] * rank if len(given) < 3 else _refuse_pairs(width, rank)
    pairs = [extents("pad: pad_width", pair) for pair in given]
    pairs = [(pair[0], pair[-1]) for pair in pairs]
    return pairs * rank if len(pairs) == 1 else pairs


def _refuse_pairs(width: Any, rank: int) -> list[tuple[int, int]]:
    raise ShapeError(f"pad: pad_width is {width}, needs a number, a pair, or {rank} pairs")


def tril(x: Array, /, k: int = 0) -> Array:
    """Lower triangle of each matrix, with zeros elsewhere; `k` is the last diagonal kept."""
    return wrap(triangular.tril(as_node("tril", x), k))


def triu(x: Array, /, k: int = 0) -> Array:
    """Upper triangle of each matrix, with zeros elsewhere; `k` is the first diagonal kept."""
    return wrap(triangular.triu(as_node("triu", x), k))


def diagonal(x: Array, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """View of a diagonal of each matrix, as the last axis; above 0 lies above the main one."""
    return wrap(ops.diagonal(as_node("diagonal", x), offset, axis1, axis2))


def diag(x: Array, /, k: int = 0) -> Array:
    """Matrix with a vector on a diagonal, or the diagonal of a matrix."""
    return wrap(ops.numpy_diag(as_node("diag", x), k))


def trace(x: Array, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    """Sum of a diagonal of each matrix; see `diagonal` and `sum`."""
    from wgpu_backend.array.reductions import sum

    return sum(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)


def as_strided(
    x: Array,
    /,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    offset: int = 0,
) -> Array:
    """View of the values of an array, in row-major order, with any strides.

    Parameters
    ----------
    x : (...)
    shape, strides : sequence of int, or None
        Those of `x`. Strides count values; below 0 they go backwards.
    offset : int
        Where the view begins.

    Raises
    ------
    ShapeError
        The view would leave the values.
    """
    node = flatten_node(as_node("as_strided", x))
    wanted = x.shape if shape is None else extents("as_strided: shape", shape)
    steps = dense_strides(wanted) if strides is None else extents("as_strided: strides", strides)
    if len(wanted) != len(steps):
        raise ShapeError(f"as_strided: shape {wanted}, strides {steps}, needs as many")
    if not node.spec.is_dense:  # strides are those of the values in a row
        node = copying.contiguous(node)
    low = sum(min(s, 0) * (n - 1) for n, s in zip(wanted, steps, strict=True))
    high = sum(max(s, 0) * (n - 1) for n, s in zip(wanted, steps, strict=True))
    if math.prod(wanted) and not 0 <= offset + low <= offset + high < node.spec.size:
        raise ShapeError(
            f"as_strided: shape {wanted}, strides {steps} from {offset} reach values "
            f"{offset + low} to {offset + high}, there are {node.spec.size}"
        )
    ahead = tuple(abs(s) for s in steps)
    view = Spec(wanted, node.spec.dtype, ahead, node.spec.offset + offset + low)
    turned = [a for a, s in enumerate(steps) if s < 0]
    found = make_view(node, view)
    return wrap(copying.flip(found, axes=turned) if turned else found)


def view(x: Array, /, dtype: Any) -> Array:
    """Bits of an array as another type; the last axis holds as many bytes as before.

    Raises
    ------
    ShapeError
        The bytes of a row are no whole number of values.
    """
    kind, node = as_dtype(dtype), as_node("view", x)
    own, size = node.spec.dtype.block_nbytes, kind.block_nbytes
    if kind.quantised:
        raise DTypeError(f"view: {kind} has blocks, needs a plain type")
    if own == size:
        return wrap(_reinterpreted(node, Spec(x.shape, kind, node.spec.strides, node.spec.offset)))
    if not x.ndim or x.shape[-1] * own % size:
        raise ShapeError(
            f"view: rows of {x.shape[-1:] or (1,)} {node.spec.dtype} values, needs a multiple of "
            f"{size} bytes for {kind}"
        )
    dense = node if node.spec.is_dense and node.spec.offset * own % size == 0 else _fresh(node)
    shape = (*x.shape[:-1], x.shape[-1] * own // size)
    return wrap(
        _reinterpreted(
            dense, Spec(shape, kind, dense_strides(shape), dense.spec.offset * own // size)
        )
    )


def _fresh(node: Node) -> Node:
    return copying.contiguous(node)


def _reinterpreted(node: Node, spec: Spec) -> Node:
    return make_view(node, spec)


def unflatten(x: Array, /, axis: int, shape: Sequence[int]) -> Array:
    """View with an axis cut into several; one extent may be -1."""
    node = as_node("unflatten", x)
    at = normalise_axis("unflatten", node, axis)
    extent, parts = node.spec.shape[at], list(extents("unflatten", shape))
    if parts.count(-1) == 1:
        rest = math.prod(p for p in parts if p != -1)
        parts[parts.index(-1)] = extent // rest if rest else 0
    if math.prod(parts) != extent:
        raise ShapeError(f"unflatten: axis {at} of {x.shape} has {extent} values, not {shape}")
    return wrap(reshape_node(node, (*node.spec.shape[:at], *parts, *node.spec.shape[at + 1 :])))


def atleast_1d(*arrays: Array) -> Any:
    """Arrays with at least one axis."""
    return _each(arrays, {0: (1,)})


def atleast_2d(*arrays: Array) -> Any:
    """Arrays with at least two axes; what has one becomes a row."""
    return _each(arrays, {0: (1, 1), 1: (1, -1)})


def atleast_3d(*arrays: Array) -> Any:
    """Arrays with at least three axes; a row becomes (1, n, 1), a matrix (n, m, 1)."""
    return _each(arrays, {0: (1, 1, 1), 1: (1, -1, 1), 2: None})


def _each(arrays: Sequence[Array], shapes: dict[int, Any]) -> Any:
    """Arrays in the shapes for their numbers of axes; None adds an axis behind."""
    found = [
        x.reshape(*(shapes[x.ndim] or (*x.shape, 1))) if x.ndim in shapes else wrap(x.node)
        for x in arrays
    ]
    return found[0] if len(found) == 1 else found
