"""Reading, writing and updating parts of arrays, by NumPy's rules.

Integers and slices make views; a slice of negative step is a view of the values in order, reversed.
Arrays of integers and of bools gather: an id for every value of the result is computed from the
entries of the index, then one `take` fetches them, or one `scatter` writes them.

``x.at[index].add(values)`` folds values into places, which may repeat.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from wgpu_backend.array.base import ArrayBase, constant, make_node, wrap
from wgpu_backend.array.conversion import MOST_AXES, convert, flatten_node
from wgpu_backend.array.promotion import apply_to_nodes, common_shape, write_out
from wgpu_backend.array.session import Session
from wgpu_backend.array.types import FLOATING, Scalar
from wgpu_backend.dtypes import BOOL, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape, Spec, dense_strides
from wgpu_backend.ml.executor import Array as HostArray
from wgpu_backend.ops.elementwise import arithmetic, comparison
from wgpu_backend.ops.index import accumulating, compacting, scatter, taking, writing
from wgpu_backend.ops.shape.copying import flip
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import expand, make_view

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

# Entries of an index.


class OutOfRange(ShapeError, IndexError):
    """An index outside an array."""


@dataclass(frozen=True, slots=True)
class Range:
    """Values of an axis in steps; a step below 0 goes backwards. None as axis is a new axis."""

    axis: int | None
    start: int
    count: int
    step: int


@dataclass(frozen=True, slots=True)
class One:
    """A single index into an axis, which drops the axis from the result."""

    axis: int
    at: int


@dataclass(frozen=True, slots=True)
class Ids:
    """Values of an axis by their ids, from 0 on; `host` has the ids unless they are on a device."""

    axis: int
    node: Node
    host: HostArray | None = None


Place = Range | One | Ids


def parse(shape: Shape, index: Any, session: Session) -> list[Place]:
    """Return the places of an index, one for each axis, in order."""
    items = _fill_ellipsis(shape, index)
    places: list[Place] = []
    axis = 0
    for item in items:
        # A mask without axes, True or False, makes a new axis of 1 or 0 values, as in NumPy.
        if item is None or (_is_mask(item) and not _rank(item)):
            places.append(Range(None, 0, 1 if item is None else int(bool(item)), 1))
            continue
        for place in _places(item, axis, shape, session):
            places.append(place)
            axis += 1
    return places


def _fill_ellipsis(shape: Shape, index: Any) -> list[Any]:
    """Replace ``...`` by as many full slices as axes are left."""
    given = list(cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,)))
    taken = sum(_width(item) for item in given)
    dots = [i for i, item in enumerate(given) if item is Ellipsis]
    if taken > len(shape):
        raise OutOfRange(f"index: {taken} indices, {shape} has {len(shape)} axes")
    if len(dots) > 1:
        raise OutOfRange(f"index: {len(dots)} of ..., needs at most one")
    at = dots[0] if dots else len(given)
    return [*given[:at], *[slice(None)] * (len(shape) - taken), *given[at + 1 :]]


def _width(item: Any) -> int:
    """Return the number of axes that an entry indexes."""
    if item is None or item is Ellipsis:
        return 0
    return _rank(item) if _is_mask(item) else 1


def _rank(item: Any) -> int:
    return item.ndim if isinstance(item, ArrayBase) else np.ndim(item)


def _is_mask(item: Any) -> bool:
    if isinstance(item, ArrayBase):
        return item.dtype == BOOL
    # Before integers: a bool of Python is an int.
    if isinstance(item, bool | np.bool):
        return True
    return isinstance(item, list | np.ndarray) and _host(item).dtype == np.bool


def _host(item: Any) -> HostArray:
    return np.asarray(item)


def _places(item: Any, axis: int, shape: Shape, session: Session) -> Sequence[Place]:
    if isinstance(item, slice):
        return [_range(cast("slice[Any, Any, Any]", item), axis, shape[axis])]
    if _is_mask(item):
        return _true_places(item, axis, shape, session)
    # An array of NumPy without axes is a number. One on the device stays there, as an id.
    if isinstance(item, ArrayBase) or (isinstance(item, list | np.ndarray) and _rank(item)):
        return [_ids(item, axis, shape[axis], session)]
    return [_one(item, axis, shape[axis])]


def _range(item: slice[Any, Any, Any], axis: int, extent: int) -> Range:
    try:
        start, stop, step = item.indices(extent)
    except (TypeError, ValueError) as error:
        raise OutOfRange(f"index: {item}: {error}") from None
    return Range(axis, start, len(range(start, stop, step)), step)


def _one(item: Any, axis: int, extent: int) -> One:
    try:
        at = operator.index(item)
    except TypeError:
        raise DTypeError(
            f"index: {item!r}, needs integers, slices, ..., None, or arrays of these or of bool"
        ) from None
    if not -extent <= at < extent:
        raise OutOfRange(f"index: {at}, axis {axis} has {extent} values")
    return One(axis, at % extent)


def _ids(item: Any, axis: int, extent: int, session: Session) -> Ids:
    """Return ids from an array of integers; below 0 they count from the end."""
    known: HostArray | None = None
    if isinstance(item, ArrayBase):
        node = item.node
    else:
        # An empty list has no type of its own; NumPy makes it float64.
        host = np.asarray(item) if np.size(item) else np.zeros(np.shape(item), np.int32)
        outside = host[(host < -extent) | (host >= extent)] if host.dtype.kind in "iu" else host[:0]
        if outside.size:
            raise OutOfRange(f"index: {outside.flat[0]}, axis {axis} has {extent} values")
        node = constant(session, host, I32) if host.dtype.kind in "iu" else make_node(host)
        known = host.astype(np.int64) % max(extent, 1) if host.dtype.kind in "iu" else None
    if node.spec.dtype.numpy is None or node.spec.dtype.numpy.kind not in "iu":
        raise DTypeError(f"index: an array of {node.spec.dtype}, needs integers or bool")
    ids = convert(node, I32)
    # The host cannot check ids on a device, so ids below 0 are corrected there.
    raised = apply_to_nodes(
        arithmetic.add, "index", ids, constant(session, np.asarray(extent), I32)
    )
    below = apply_to_nodes(comparison.less, "index", ids, constant(session, np.asarray(0), I32))
    return Ids(axis, apply_to_nodes(comparison.where, "index", below, raised, ids), known)


def _true_places(item: Any, axis: int, shape: Shape, session: Session) -> list[Place]:
    """Return the ids of a mask's true values along each axis; the host reads their number."""
    mask = item.node if isinstance(item, ArrayBase) else constant(session, np.asarray(item), BOOL)
    extents = mask.spec.shape
    own = shape[axis : axis + len(extents)]
    if any(n not in (0, m) for n, m in zip(extents, own, strict=True)):
        raise OutOfRange(f"index: a mask of {extents}, the axes have {own}")
    return [Ids(axis + i, ids) for i, ids in enumerate(find_true(mask))]


def find_true(mask: Node) -> list[Node]:
    """Return the ids of true values along each axis, in row-major order.

    The host reads their number, as shapes depend on it.
    """
    count = int(wrap(compacting.count_true(mask)).item())
    rest = compacting.compact(mask, count)
    found: list[Node] = []
    session = cast("Session", mask.builder)
    # Row-major numbers split into an id for each axis, the last axis first.
    for extent in reversed(mask.spec.shape):
        divisor = constant(session, np.asarray(max(extent, 1)), I32)
        found.append(arithmetic.remainder(rest, divisor))
        rest = arithmetic.floor_divide(rest, divisor)
    return found[::-1]


# Reading and writing.


def is_operand(value: object) -> bool:
    """Return whether a value may be an operand next to an array."""
    return isinstance(value, ArrayBase | Scalar | np.ndarray | np.generic | list | tuple)


def getitem(x: Array, index: Any) -> Array:
    """Return ``x[index]``: a view, or a copy where the index has arrays.

    Raises
    ------
    ShapeError
        There are more indices than axes, one lies outside, or arrays do not broadcast.
    DTypeError
        An index is of another kind.
    """
    node = x.node
    places = parse(node.spec.shape, index, x.session)
    if any(isinstance(p, Ids) for p in places):
        return wrap(_gather(node, places, x.session))
    return wrap(_view_places(node, places))


def setitem(x: Array, index: Any, values: Any) -> Array:
    """Return a copy of an array with `values` at an index.

    Of equal ids the last value stays, as in NumPy, if they are on the host: numbers, lists, NumPy's
    arrays. Of equal ids in an array of the device either may win, as in MLX.
    """
    node = x.node
    mask = _mask(node.spec.shape, index)
    # One value into a mask is a `where`: the host need not count the true values.
    if mask is not None and _is_number(values):
        given = _values(values, node, x.session)
        truth = convert(mask, BOOL)
        missing = (1,) * (len(node.spec.shape) - len(truth.spec.shape))
        whole = reshape_node(truth, (*truth.spec.shape, *missing))
        return wrap(apply_to_nodes(comparison.where, "setitem", whole, given, node))
    places = parse(node.spec.shape, index, x.session)
    ranges = _forwards(places)
    # A slice is written by one copy of the array, without ids.
    if ranges and len(node.spec.shape) <= MOST_AXES:
        return wrap(_update_slice(node, places, ranges, _values(values, node, x.session)))
    ids, given = _ids_and_values(node, places, values, x.session)
    if not given.spec.size:
        return x
    # Of equal ids with one value any may win.
    if not _is_number(values):
        ids = _drop_repeats(ids, places, node.spec.size, x.session)
    dst = reshape_node(write_out(node, node.spec.shape), (node.spec.size,))
    made = scatter.put_along_axis(dst, flatten_node(ids), flatten_node(given), 0)
    return wrap(reshape_node(made, node.spec.shape))


def _drop_repeats(ids: Node, places: Sequence[Place], size: int, session: Session) -> Node:
    """Move repeated ids out of range, all but the last of each, so that no writes race."""
    repeated = _find_repeats([p.host for p in places if isinstance(p, Ids)])
    if repeated is None:
        return ids
    first, count = _array_place(places), len(ids.spec.shape)
    after = count - repeated.ndim if first == -2 else _axes_after(places, first)
    mask = constant(session, repeated.reshape(*repeated.shape, *(1,) * after), BOOL)
    outside = constant(session, np.asarray(size), I32)
    return apply_to_nodes(comparison.where, "index", mask, outside, ids)


def _find_repeats(hosts: Sequence[HostArray | None]) -> HostArray | None:
    """Return which ids occur again later; None if all differ or the host does not know them."""
    known = [host for host in hosts if host is not None]
    if not known or len(known) < len(hosts):
        return None
    common = np.broadcast_arrays(*known)
    # One number for each tuple of ids; the first in reverse order is the last of its equals.
    keys = np.ravel_multi_index(common, [int(ids.max()) + 1 for ids in known])
    _, last = np.unique(keys.reshape(-1)[::-1], return_index=True)
    if len(last) == keys.size:
        return None
    repeated = np.ones(keys.size, np.bool)
    repeated[keys.size - 1 - last] = False
    return repeated.reshape(keys.shape)


def locate_values(x: Array, index: Any, values: Any) -> tuple[Node, Node]:
    """Return the flat indices that an index selects, and values for them, in one shape."""
    places = parse(x.shape, index, x.session)
    return _ids_and_values(x.node, places, values, x.session)


def _ids_and_values(
    node: Node, places: Sequence[Place], values: Any, session: Session
) -> tuple[Node, Node]:
    ids, shape = _flat_ids(node.spec.shape, places, session)
    return ids, write_out(_fit_values(_values(values, node, session), shape), shape)


def _forwards(places: Sequence[Place]) -> list[tuple[int, int, int]]:
    """Return start, count and step for each axis if all are ranges of positive step."""
    own = [p for p in places if not (isinstance(p, Range) and p.axis is None)]
    if any(isinstance(p, Ids) or (isinstance(p, Range) and p.step < 0) for p in own):
        return []
    return [_span(p) for p in own]


def _update_slice(
    node: Node, places: Sequence[Place], ranges: Sequence[tuple[int, int, int]], values: Node
) -> Node:
    """Return a copy of a node with the given values in a slice."""
    shape = tuple(p.count for p in places if isinstance(p, Range))
    window = tuple(count for _, count, _ in ranges)
    # Values that do not fit an empty slice are an error all the same.
    if not math.prod(window):
        _fit_values(values, shape)
        return node
    update = reshape_node(_fit_values(values, shape), window)
    starts, steps = [r[0] for r in ranges], [r[2] for r in ranges]
    stops = [start + (count - 1) * step + 1 for start, count, step in ranges]
    return writing.slice_update(node, update, starts, stops, steps)


def _view_places(node: Node, places: Sequence[Place]) -> Node:
    """Return the view that ranges and single values select."""
    found = node.spec
    shape: list[int] = []
    strides: list[int] = []
    backwards: list[int] = []
    for place in places:
        if isinstance(place, Range) and place.axis is None:
            shape.append(place.count)
            strides.append(0)
            continue
        start, count, step = _span(place)
        found = specs.slice_axis(
            found,
            cast("int", place.axis),
            start,
            start + (count - 1) * step + 1 if count else start,
            step,
        )
        if isinstance(place, Range):
            if place.step < 0:
                backwards.append(len(shape))
            shape.append(found.shape[cast("int", place.axis)])
            strides.append(found.strides[cast("int", place.axis)])
    view = make_view(node, Spec(tuple(shape), node.spec.dtype, tuple(strides), found.offset))
    return flip(view, axes=backwards) if backwards else view


def _span(place: Place) -> tuple[int, int, int]:
    """Return start, count and positive step of a place along its axis."""
    if isinstance(place, One):
        return place.at, 1, 1
    assert isinstance(place, Range)
    if place.step > 0 or not place.count:
        return place.start if place.count else 0, place.count, max(place.step, 1)
    return place.start + (place.count - 1) * place.step, place.count, -place.step


def _gather(node: Node, places: Sequence[Place], session: Session) -> Node:
    # A single array and whole ranges need no id for each value of the result.
    single = [p for p in places if isinstance(p, Ids)]
    rest = [p for p in places if p is not single[0]]
    if len(single) == 1 and all(_is_whole(p, node.spec.shape) for p in rest):
        return _take_axis(node, single[0])
    ids, shape = _flat_ids(node.spec.shape, places, session)
    dense = flatten_node(write_out(node, node.spec.shape))
    return reshape_node(taking.take_axes(dense, flatten_node(ids), 0), shape)


def _is_whole(place: Place, shape: Shape) -> bool:
    return (
        isinstance(place, Range)
        and place.axis is not None
        and place.step == 1
        and (place.count == shape[place.axis])
    )


def _take_axis(node: Node, place: Ids) -> Node:
    """Take values of one axis by ids: the usual case, in one dispatch."""
    shape = node.spec.shape
    before, after = shape[: place.axis], shape[place.axis + 1 :]
    three = reshape_node(node, (math.prod(before), shape[place.axis], math.prod(after)))
    y = taking.take_axes(three, flatten_node(place.node), 1)
    return reshape_node(y, (*before, *place.node.spec.shape, *after))


def _flat_ids(shape: Shape, places: Sequence[Place], session: Session) -> tuple[Node, Shape]:
    """Return the flat indices of the indexed values, and the shape of the result."""
    steps = dense_strides(shape)
    arrays = [p for p in places if isinstance(p, Ids)]
    common = common_shape("index", [p.node.spec.shape for p in arrays]) if arrays else ()
    first = _array_place(places) if arrays else -1
    # Extents of the result, in order; all arrays together count as one group.
    extents: list[Shape] = []
    for number, place in enumerate(places):
        if number == first:
            extents.append(common)
        if isinstance(place, Range):
            extents.append((place.count,))
    # NumPy puts the axes of arrays first if other entries separate them.
    if first == -2:
        extents.insert(0, common)
    result = tuple(n for group in extents for n in group)
    total = constant(session, np.asarray(_base_id(places, steps)), I32)
    at = len(common) if first == -2 else 0
    for number, place in enumerate(places):
        if number == first:
            at += len(common)
        if isinstance(place, Range):
            if place.axis is not None:
                host = place.step * steps[place.axis] * np.arange(place.count)
                total = _plus(total, host.reshape(-1, *(1,) * (len(result) - at - 1)), session)
            at += 1
    after = _axes_after(places, first)
    for place in arrays:
        scaled = apply_to_nodes(
            arithmetic.mul,
            "index",
            place.node,
            constant(session, np.asarray(steps[place.axis]), I32),
        )
        placed = reshape_node(
            scaled,
            (*scaled.spec.shape, *(1,) * (len(result) - len(common) if first == -2 else after)),
        )
        total = apply_to_nodes(arithmetic.add, "index", total, placed)
    return write_out(expand(total, result), result), result


def _base_id(places: Sequence[Place], steps: Shape) -> int:
    """Return the flat index of the first selected value."""
    begin = 0
    for place in places:
        if isinstance(place, One):
            begin += place.at * steps[place.axis]
        elif isinstance(place, Range) and place.axis is not None and place.count:
            begin += place.start * steps[place.axis]
    return begin


def _plus(total: Node, host: Any, session: Session) -> Node:
    return apply_to_nodes(arithmetic.add, "index", total, constant(session, host, I32))


def _array_place(places: Sequence[Place]) -> int:
    """Return the place of the index arrays' axes in the result; -2 if other entries separate them.

    Next to arrays a number counts as an array, as in NumPy.
    """
    at = [i for i, p in enumerate(places) if isinstance(p, Ids | One)]
    return at[0] if at[-1] - at[0] + 1 == len(at) else -2


def _axes_after(places: Sequence[Place], first: int) -> int:
    """Return how many axes of the result follow those of the index arrays."""
    return sum(isinstance(p, Range) for p in places[first:]) if first >= 0 else 0


def _mask(shape: Shape, index: Any) -> Node | None:
    """Return the node of an index that is one mask."""
    if isinstance(index, ArrayBase) and index.dtype == BOOL and index.ndim:
        if index.shape != shape[: index.ndim]:
            raise ShapeError(f"index: a mask of {index.shape}, the array has {shape}")
        return index.node
    return None


def _is_number(values: Any) -> bool:
    return isinstance(values, Scalar | np.generic) or (
        isinstance(values, ArrayBase) and values.size == 1
    )


def _values(values: Any, node: Node, session: Session) -> Node:
    """Convert values to the type of the array that they are written to."""
    if isinstance(values, ArrayBase):
        return convert(values.node, node.spec.dtype)
    # A float into integers would lose its fraction without notice.
    host = np.asarray(values)
    if (
        host.dtype.kind == "f"
        and node.spec.dtype.numpy is not None
        and (node.spec.dtype.numpy.kind in "iub" and node.spec.dtype.name != "bf16")
    ):
        raise DTypeError(f"setitem: {values!r} into {node.spec.dtype}, needs integers; use astype")
    return constant(session, host, node.spec.dtype)


def _fit_values(values: Node, shape: Shape) -> Node:
    """Broadcast values to the shape they are written to; drop leading axes of one if needed."""
    own = values.spec.shape
    # NumPy allows more axes than the target has, if they are of one value.
    while len(own) > len(shape) and own[0] == 1:
        own = own[1:]
    if common_shape("setitem", [own, shape]) != shape:
        raise ShapeError(f"setitem: values of {values.spec.shape} into {shape}")
    return expand(reshape_node(values, own), shape)


# Updates.


def _negative(x: Array) -> Array:
    return -x


def _reciprocal(x: Array) -> Array:
    return 1 / x


class Places:
    """Places of an array that values are folded into; `Array.at` makes one."""

    def __init__(self, x: Array, index: Any = ...) -> None:
        self._x, self._index = x, index

    def __getitem__(self, index: Any) -> Places:
        return Places(self._x, index)

    def add(self, values: Any) -> Array:
        """Return an array with values added."""
        return self._fold(values, "add")

    def subtract(self, values: Any) -> Array:
        """Return an array with values subtracted."""
        return self._fold(values, "add", _negative)

    def multiply(self, values: Any) -> Array:
        """Return an array multiplied by values."""
        return self._fold(values, "mul")

    def divide(self, values: Any) -> Array:
        """Return an array of floats divided by values."""
        if self._x.dtype not in FLOATING:
            raise DTypeError(f"at[].divide: {self._x.dtype}, needs floats")
        return self._fold(values, "mul", _reciprocal)

    def maximum(self, values: Any) -> Array:
        """Return an array with the larger of the present value and the given one at each place."""
        return self._fold(values, "max")

    def minimum(self, values: Any) -> Array:
        """Return an array with the smaller of the present value and the given one at each place."""
        return self._fold(values, "min")

    def _fold(self, values: Any, mode: str, change: Any = None) -> Array:
        x = self._x
        ids, given = locate_values(x, self._index, values)
        if not given.spec.size:
            return wrap(x.node)
        if change is not None:
            given = change(wrap(given)).node
        row = flatten_node(write_out(x.node, x.shape))
        found = accumulating.fold_at(row, flatten_node(ids), flatten_node(given), 0, mode)
        return wrap(reshape_node(convert(found, x.dtype), x.shape))
