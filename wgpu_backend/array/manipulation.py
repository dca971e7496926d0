"""Functions that change the shape or order of values: reshape, concat, flip, roll, tile, pad.

Most are views, which cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.base import ArrayBase, constant, wrap
from wgpu_backend.array.conversion import convert, flatten_node
from wgpu_backend.array.indexing import OutOfRange
from wgpu_backend.array.promotion import as_node, common_shape, normalise_axis, split_around
from wgpu_backend.array.types import result_type
from wgpu_backend.dtypes import I32, as_dtype
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Extents, Shape, Spec, dense_strides, extents
from wgpu_backend.ops.conv import padding
from wgpu_backend.ops.index import taking
from wgpu_backend.ops.shape import copying, triangular
from wgpu_backend.ops.shape import moving as ops
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import expand, make_view, permute

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Axes = int | Sequence[int]


def reshape(x: Array, /, shape: Extents, *, copy: bool | None = None) -> Array:
    """Return the same values under another shape; one extent may be -1."""
    node = as_node("reshape", x)
    wanted = specs.fill_extent(node.spec, extents("reshape", (shape,)))
    return wrap(
        copying.contiguous(reshape_node(node, wanted)) if copy else reshape_node(node, wanted)
    )


def flatten(x: Array, /, start_axis: int = 0, end_axis: int = -1) -> Array:
    """Join the axes from one to another, all by default."""
    node = as_node("flatten", x)
    shape = node.spec.shape
    if not shape:
        return wrap(reshape_node(node, (1,)))
    start, end = (
        normalise_axis("flatten", node, start_axis),
        normalise_axis("flatten", node, end_axis),
    )
    if start > end:
        raise ShapeError(f"flatten: axes {start} to {end} of {shape}, needs them in order")
    joined = math.prod(shape[start : end + 1])
    return wrap(reshape_node(node, (*shape[:start], joined, *shape[end + 1 :])))


def permute_dims(x: Array, /, axes: Sequence[int] | None = None) -> Array:
    """Return a view with the axes in another order; reversed if none is given."""
    node = as_node("permute_dims", x)
    order = range(len(node.spec.shape) - 1, -1, -1) if axes is None else axes
    return wrap(permute(node, *order))


def transpose(x: Array, /, *order: Any, axes: Sequence[int] | None = None) -> Array:
    """Return `permute_dims` with axes one by one or in a sequence."""
    listed = order[0] if len(order) == 1 and not isinstance(order[0], int) else order or axes
    return permute_dims(x, listed or None)


def matrix_transpose(x: Array, /) -> Array:
    """Return a view with the last two axes exchanged."""
    return swapaxes(x, -1, -2)


def swapaxes(x: Array, /, a: int, b: int) -> Array:
    """Return a view with two axes exchanged."""
    node = as_node("swapaxes", x)
    order = list(range(len(node.spec.shape)))
    first, second = normalise_axis("swapaxes", node, a), normalise_axis("swapaxes", node, b)
    order[first], order[second] = order[second], order[first]
    return wrap(permute(node, *order))


def moveaxis(x: Array, source: Axes, destination: Axes, /) -> Array:
    """Return a view with axes at other places; the others keep their order."""
    node = as_node("moveaxis", x)
    old = [normalise_axis("moveaxis", node, a) for a in extents("moveaxis", source)]
    new = [normalise_axis("moveaxis", node, a) for a in extents("moveaxis", destination)]
    if len(set(old)) != len(old) or len(set(new)) != len(new) or len(old) != len(new):
        raise ShapeError(f"moveaxis: axes {old} to {new}, needs as many new as old ones, each once")
    order = [a for a in range(len(node.spec.shape)) if a not in old]
    for place, axis in sorted(zip(new, old, strict=True)):
        order.insert(place, axis)
    return wrap(permute(node, *order))


def expand_dims(x: Array, /, axis: Axes = 0) -> Array:
    """Return a view with axes of length 1 inserted; `axis` has their positions in the result."""
    node = as_node("expand_dims", x)
    places = extents("expand_dims", axis)
    rank = len(node.spec.shape) + len(places)
    if any(not -rank <= p < rank for p in places) or len({p % rank for p in places}) < len(places):
        raise OutOfRange(f"expand_dims: axes {places}, the result has {rank}, needs each once")
    at = {p % rank for p in places}
    old = iter(zip(node.spec.shape, node.spec.strides, strict=True))
    pairs = [(1, 0) if a in at else next(old) for a in range(rank)]
    shape, strides = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    return wrap(make_view(node, Spec(shape, node.spec.dtype, strides, node.spec.offset)))


def squeeze(x: Array, /, axis: Axes | None = None) -> Array:
    """Return a view without axes of length 1: those named, or all of them."""
    node = as_node("squeeze", x)
    shape = node.spec.shape
    if axis is None:
        gone = {a for a, n in enumerate(shape) if n == 1}
    else:
        gone = {normalise_axis("squeeze", node, a) for a in extents("squeeze", axis)}
    for a in gone:
        if shape[a] != 1:
            raise ShapeError(f"squeeze: axis {a} of {shape} has {shape[a]} values, needs 1")
    kept = [a for a in range(len(shape)) if a not in gone]
    left = Spec(
        tuple(shape[a] for a in kept),
        node.spec.dtype,
        tuple(node.spec.strides[a] for a in kept),
        node.spec.offset,
    )
    return wrap(make_view(node, left))


def broadcast_to(x: Array, /, shape: Shape) -> Array:
    """Return a view that repeats values along axes of one value and new leading axes."""
    node = as_node("broadcast_to", x)
    wanted = extents("broadcast_to", shape)
    if common_shape("broadcast_to", [node.spec.shape, wanted]) != wanted:
        raise ShapeError(f"broadcast_to: {node.spec.shape} does not broadcast to {wanted}")
    return wrap(expand(node, wanted))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that all broadcast to."""
    return common_shape("broadcast_shapes", shapes) if shapes else ()


def broadcast_arrays(*arrays: Array) -> tuple[Array, ...]:
    """Return views of arrays in the shape that all broadcast to."""
    shape = broadcast_shapes(*(a.shape for a in arrays))
    return tuple(broadcast_to(a, shape) for a in arrays)


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Join arrays along an axis, or all their values where it is None.

    Raises
    ------
    ShapeError
        There are no arrays, or other extents than that of the axis differ.
    """
    if not arrays:
        raise ShapeError("concat: no array, needs at least 1")
    kind = result_type(*arrays)
    nodes = [convert(as_node("concat", a), kind) for a in arrays]
    if axis is None:
        nodes, axis = [reshape_node(n, (n.spec.size,)) for n in nodes], 0
    return wrap(join_nodes(nodes, normalise_axis("concat", nodes[0], axis)))


def join_nodes(nodes: Sequence[Node], axis: int) -> Node:
    """Join nodes of one type along an axis, pairs first, so that each value moves few times."""
    shapes = [n.spec.shape for n in nodes]
    rest = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    if len(rest) > 1 or len({len(s) for s in shapes}) > 1:
        raise ShapeError(
            f"concat: {shapes} differ in other axes than {axis}, needs the same extents there"
        )
    three = [split_around(n, axis)[0] for n in nodes]
    # Joining one after another would copy the first array n - 1 times; a tree copies each log2(n)
    # times.
    while len(three) > 1:
        pairs = zip(three[::2], three[1::2], strict=False)
        odd = three[-1:] if len(three) % 2 else []
        three = [copying.concat(a, b, axis=1) for a, b in pairs] + odd
    total = sum(s[axis] for s in shapes)
    return reshape_node(three[0], (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Join arrays along an axis; `concat` as NumPy and MLX spell it."""
    return concat(arrays, axis=axis)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Join arrays of one shape along a new axis."""
    return concat([expand_dims(a, axis) for a in arrays], axis=axis)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Return a view of each index of an axis; the views lack the axis."""
    front = moveaxis(x, axis, 0)
    return tuple(front[i] for i in range(front.shape[0]))


def split(x: Array, /, sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Split an axis into views: `sections` equal ones, or at the indices that `sections` lists."""
    node = as_node("split", x)
    at = normalise_axis("split", node, axis)
    extent = node.spec.shape[at]
    if isinstance(sections, int):
        if sections < 1 or extent % sections:
            raise ShapeError(f"split: axis {at} has {extent} values, not {sections} equal parts")
        size = extent // sections
        places = list(range(size, extent, size))
    else:
        places = [min(max(p + extent if p < 0 else p, 0), extent) for p in sections]
    ends = [0, *places, extent]
    cut = pairwise(ends)
    return [wrap(make_view(node, specs.slice_axis(node.spec, at, a, max(a, b)))) for a, b in cut]


def contiguous(x: Array, /) -> Array:
    """Return an array whose values follow each other; itself if they do."""
    node = as_node("contiguous", x)
    return wrap(node if node.spec.is_dense else copying.contiguous(node))


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: object = None) -> Array:
    """Return an array of another type; see `wgpu_backend.ops.shape.copying.cast`."""
    from wgpu_backend.dtypes import as_dtype

    node = as_node("astype", x)
    wanted = as_dtype(dtype)
    if node.spec.dtype == wanted:
        return wrap(copying.contiguous(node) if copy else node)
    return wrap(convert(node, wanted))


def flip(x: Array, /, *, axis: Extents | None = None) -> Array:
    """Reverse the order of values along axes, along all where it is None."""
    node = as_node("flip", x)
    return wrap(copying.flip(node, axes=axis) if node.spec.shape else node)


def roll(x: Array, /, shift: Extents, axis: Extents | None = None) -> Array:
    """Shift values along axes; values that leave at one end enter at the other."""
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
    """Repeat each value along an axis, or each of the flattened array where it is None.

    Parameters
    ----------
    x : (...)
    repeats : int, or array (n,) of integers
        Number of repetitions, for all or for each place along the axis. The host reads an array on
        a device, since the shape of the result depends on it.
    """
    node = as_node("repeat", x)
    node, at = (
        (flatten_node(node), 0) if axis is None else (node, normalise_axis("repeat", node, axis))
    )
    counts = np.asarray(repeats.numpy() if isinstance(repeats, ArrayBase) else repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise ShapeError(f"repeat: {repeats!r} times, needs whole numbers of 0 or more")
    if counts.size == 1:
        return wrap(ops.repeat_each(node, int(counts.flat[0]), at))
    extent = node.spec.shape[at]
    if counts.size != extent:
        raise ShapeError(f"repeat: {counts.size} numbers, axis {at} has {extent} values")
    session: Any = node.builder
    ids = constant(session, np.repeat(np.arange(extent), counts), I32)
    three, before, after = split_around(node, at)
    found = taking.take_axes(three, ids, 1)
    return wrap(reshape_node(found, (*before, ids.spec.size, *after)))


def pad(
    x: Array,
    pad_width: int | tuple[int, int] | Sequence[tuple[int, int]],
    mode: Any = "constant",
    constant_values: Any = 0,
) -> Array:
    """Add values before and after axes.

    Parameters
    ----------
    x : (...)
    pad_width : int, (int, int), or a pair for each axis
        Numbers of values before and after; one number or pair is for all axes.
    mode : str
        ``constant``, ``edge``, ``reflect``, ``symmetric`` or ``wrap``; see
        `wgpu_backend.ops.conv.padding.pad_mode`.
    constant_values : number, or array of one
        Around values with ``constant``. The host reads an array.
    """
    node = as_node("pad", x)
    value = constant_values.item() if isinstance(constant_values, ArrayBase) else constant_values
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
    """Return the lower triangle of each matrix, else zeros; `k` is the last diagonal kept."""
    return wrap(triangular.tril(as_node("tril", x), k))


def triu(x: Array, /, k: int = 0) -> Array:
    """Return the upper triangle of each matrix, else zeros; `k` is the first diagonal kept."""
    return wrap(triangular.triu(as_node("triu", x), k))


def diagonal(x: Array, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """View a diagonal of each matrix as the last axis; above 0 is above the main diagonal."""
    return wrap(ops.diagonal(as_node("diagonal", x), offset, axis1, axis2))


def diag(x: Array, /, k: int = 0) -> Array:
    """Return a matrix with a vector on a diagonal, or the diagonal of a matrix."""
    return wrap(ops.numpy_diag(as_node("diag", x), k))


def trace(x: Array, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    """Sum a diagonal of each matrix; see `diagonal` and `sum`."""
    from wgpu_backend.array.reductions import sum

    return sum(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)


def as_strided(
    x: Array,
    /,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    offset: int = 0,
) -> Array:
    """Return a view of the values of an array, in row-major order, with any strides.

    Parameters
    ----------
    x : (...)
    shape, strides : sequence of int, or None
        Those of `x`. Strides count values; below 0 they go backwards.
    offset : int
        Place of the first value of the view.

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
    # Strides count values in row-major order, whatever the strides of `x` are.
    if not node.spec.is_dense:
        node = copying.contiguous(node)
    low = sum(min(s, 0) * (n - 1) for n, s in zip(wanted, steps, strict=True))
    high = sum(max(s, 0) * (n - 1) for n, s in zip(wanted, steps, strict=True))
    if math.prod(wanted) and not 0 <= offset + low <= offset + high < node.spec.size:
        raise ShapeError(
            f"as_strided: shape {wanted}, strides {steps} from {offset} reach values "
            f"{offset + low} to {offset + high}, there are {node.spec.size}"
        )
    # A Spec has no negative strides: view the values forwards, then reverse the axes.
    ahead = tuple(abs(s) for s in steps)
    view = Spec(wanted, node.spec.dtype, ahead, node.spec.offset + offset + low)
    backwards = [a for a, s in enumerate(steps) if s < 0]
    found = make_view(node, view)
    return wrap(copying.flip(found, axes=backwards) if backwards else found)


def view(x: Array, /, dtype: Any) -> Array:
    """Return the bits of an array as another type; the last axis holds as many bytes as before.

    Raises
    ------
    ShapeError
        The bytes of a row are not a whole number of values.
    """
    kind, node = as_dtype(dtype), as_node("view", x)
    own, size = node.spec.dtype.block_nbytes, kind.block_nbytes
    if kind.quantised:
        raise DTypeError(f"view: {kind} has blocks, needs a plain type")
    if own == size:
        return wrap(make_view(node, Spec(x.shape, kind, node.spec.strides, node.spec.offset)))
    if not x.ndim or x.shape[-1] * own % size:
        raise ShapeError(
            f"view: rows of {x.shape[-1:] or (1,)} {node.spec.dtype} values, needs a multiple of "
            f"{size} bytes for {kind}"
        )
    # A view must begin at a whole value of the new type.
    whole = node.spec.is_dense and node.spec.offset * own % size == 0
    dense = node if whole else copying.contiguous(node)
    shape = (*x.shape[:-1], x.shape[-1] * own // size)
    return wrap(
        make_view(dense, Spec(shape, kind, dense_strides(shape), dense.spec.offset * own // size))
    )


def unflatten(x: Array, /, axis: int, shape: Sequence[int]) -> Array:
    """Return a view with an axis cut into several; one extent may be -1."""
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
    """Return arrays with at least one axis."""
    return _each(arrays, {0: (1,)})


def atleast_2d(*arrays: Array) -> Any:
    """Return arrays with at least two axes; an array of one axis becomes a row."""
    return _each(arrays, {0: (1, 1), 1: (1, -1)})


def atleast_3d(*arrays: Array) -> Any:
    """Return arrays with at least three axes; a row becomes (1, n, 1), a matrix (n, m, 1)."""
    return _each(arrays, {0: (1, 1, 1), 1: (1, -1, 1), 2: None})


def _each(arrays: Sequence[Array], shapes: dict[int, Any]) -> Any:
    """Reshape each array by a function of its number of axes."""
    found = [
        x.reshape(*(shapes[x.ndim] or (*x.shape, 1))) if x.ndim in shapes else wrap(x.node)
        for x in arrays
    ]
    return found[0] if len(found) == 1 else found
