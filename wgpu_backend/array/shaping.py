"""Functions that give values another shape or order; most are views, which cost nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.conversion import convert
from wgpu_backend.array.core import wrap
from wgpu_backend.array.lifting import as_node, common_shape, normalise_axis, split_around
from wgpu_backend.array.places import OutOfRange
from wgpu_backend.array.types import result_type
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Extents, Shape, Spec, extents
from wgpu_backend.ops.shape import copying
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import expand, make_view, permute

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Axes = int | Sequence[int]


def reshape(x: Array, /, shape: Extents, *, copy: bool | None = None) -> Array:
    """Same values under another shape; one extent may be -1."""
    node = as_node("reshape", x)
    wanted = specs.fill_extent(node.spec, extents("reshape", (shape,)))
    return wrap(
        copying.contiguous(reshape_node(node, wanted)) if copy else reshape_node(node, wanted)
    )


def flatten(x: Array, /, start_axis: int = 0, end_axis: int = -1) -> Array:
    """Array with the axes from one to another joined, all by default."""
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
    """View with the axes in another order; reversed where none is given."""
    node = as_node("permute_dims", x)
    order = range(len(node.spec.shape) - 1, -1, -1) if axes is None else axes
    return wrap(permute(node, *order))


def transpose(x: Array, /, *order: Any, axes: Sequence[int] | None = None) -> Array:
    """`permute_dims` with axes one by one or in a sequence."""
    listed = order[0] if len(order) == 1 and not isinstance(order[0], int) else order or axes
    return permute_dims(x, listed or None)


def matrix_transpose(x: Array, /) -> Array:
    """View with the last two axes exchanged."""
    return swapaxes(x, -1, -2)


def swapaxes(x: Array, /, a: int, b: int) -> Array:
    """View with two axes exchanged."""
    node = as_node("swapaxes", x)
    order = list(range(len(node.spec.shape)))
    first, second = normalise_axis("swapaxes", node, a), normalise_axis("swapaxes", node, b)
    order[first], order[second] = order[second], order[first]
    return wrap(permute(node, *order))


def moveaxis(x: Array, source: Axes, destination: Axes, /) -> Array:
    """View with axes at other places; the others keep their order."""
    node = as_node("moveaxis", x)
    old = [normalise_axis("moveaxis", node, a) for a in extents("moveaxis", source)]
    new = [normalise_axis("moveaxis", node, a) for a in extents("moveaxis", destination)]
    if len(set(old)) != len(old) or len(set(new)) != len(new) or len(old) != len(new):
        raise ShapeError(f"moveaxis: axes {old} to {new}, needs as many places, each once")
    order = [a for a in range(len(node.spec.shape)) if a not in old]
    for place, axis in sorted(zip(new, old, strict=True)):
        order.insert(place, axis)
    return wrap(permute(node, *order))


def expand_dims(x: Array, /, axis: Axes = 0) -> Array:
    """View with axes of one value at these places of the result."""
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
    """View without axes of one value: these, or all there are."""
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
    """View that repeats values along axes of one value and new ones in front."""
    node = as_node("broadcast_to", x)
    wanted = extents("broadcast_to", shape)
    if common_shape("broadcast_to", [node.spec.shape, wanted]) != wanted:
        raise ShapeError(f"broadcast_to: {node.spec.shape} does not broadcast to {wanted}")
    return wrap(expand(node, wanted))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Shape that all broadcast to."""
    return common_shape("broadcast_shapes", shapes) if shapes else ()


def broadcast_arrays(*arrays: Array) -> tuple[Array, ...]:
    """Views of arrays in the shape that all broadcast to."""
    shape = broadcast_shapes(*(a.shape for a in arrays))
    return tuple(broadcast_to(a, shape) for a in arrays)


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Join arrays along an axis, or all their values where it is None.

    Raises
    ------
    ShapeError
        There is none, or another extent than that of the axis differs.
    """
    if not arrays:
        raise ShapeError("concat: no array, needs at least 1")
    kind = result_type(*arrays)
    nodes = [convert(as_node("concat", a), kind) for a in arrays]
    if axis is None:
        nodes, axis = [reshape_node(n, (n.spec.size,)) for n in nodes], 0
    return wrap(join_nodes(nodes, normalise_axis("concat", nodes[0], axis)))


def join_nodes(nodes: Sequence[Node], axis: int) -> Node:
    """Nodes of one type joined along an axis, pairs first, so that each value moves few times."""
    shapes = [n.spec.shape for n in nodes]
    rest = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    if len(rest) > 1 or len({len(s) for s in shapes}) > 1:
        raise ShapeError(f"concat: {shapes} differ beyond axis {axis}")
    three = [split_around(n, axis)[0] for n in nodes]
    while len(three) > 1:
        pairs = zip(three[::2], three[1::2], strict=False)
        odd = three[-1:] if len(three) % 2 else []
        three = [copying.concat(a, b, axis=1) for a, b in pairs] + odd
    total = sum(s[axis] for s in shapes)
    return reshape_node(three[0], (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    """`concat`, as NumPy and MLX spell it."""
    return concat(arrays, axis=axis)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Join arrays of one shape along a new axis."""
    return concat([expand_dims(a, axis) for a in arrays], axis=axis)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Views along an axis, without it."""
    front = moveaxis(x, axis, 0)
    return tuple(front[i] for i in range(front.shape[0]))


def split(x: Array, /, sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Views of an axis in so many equal parts, or cut at these places."""
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
    """Array whose values follow each other; itself where they do."""
    node = as_node("contiguous", x)
    return wrap(node if node.spec.is_dense else copying.contiguous(node))


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: object = None) -> Array:
    """Array of another type; see `wgpu_backend.ops.shape.copying.cast`."""
    from wgpu_backend.dtypes import as_dtype

    node = as_node("astype", x)
    wanted = as_dtype(dtype)
    if node.spec.dtype == wanted:
        return wrap(copying.contiguous(node) if copy else node)
    return wrap(convert(node, wanted))
