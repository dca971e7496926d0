"""The entries of an index, by NumPy's rules: ranges, single values and ids for each axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from wgpu_backend.array.base import ArrayBase, constant, make_node, wrap
from wgpu_backend.array.conversion import convert
from wgpu_backend.array.promotion import apply_to_nodes
from wgpu_backend.array.session import Session
from wgpu_backend.dtypes import BOOL, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape
from wgpu_backend.ml.executor import Array as HostArray
from wgpu_backend.ops.elementwise import arithmetic, comparison
from wgpu_backend.ops.index import compacting


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
    """One value of an axis, which the result lacks."""

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
        raise OutOfRange(f"index: ... stands in {len(dots)} places, needs one at most")
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
