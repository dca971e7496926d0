"""Basic indexing of tensors: from an index to the spec of a view."""

from __future__ import annotations

import operator
from typing import Any, cast

from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec, slice_axis
from wgpu_backend.ops.check import describe

_ELSEWHERE = (
    "rows(ids) and take_axes(ids, axis) take rows by their numbers, take_along_axis one value "
    "each, condition.where(a, b) chooses by a condition"
)


def index_spec(spec: Spec, index: Any) -> Spec:  # noqa: ANN401
    """Return the spec of ``x[index]`` for integers, slices of positive step, ``...`` and None.

    Raises
    ------
    ShapeError
        There are more indices than axes, one lies outside, or a step is not positive.
    DTypeError
        An index is of another kind: an array, a list, a bool.
    """
    given = cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
    items = _fill_axes(spec, given)
    found, axis = spec, 0
    shape: list[int] = []
    strides: list[int] = []
    for item in items:
        if item is None:
            shape.append(1)
            # Never taken: the new axis has one value.
            strides.append(0)
            continue
        start, stop, step = _bounds(item, spec.shape[axis])
        found = slice_axis(found, axis, start, stop, step)
        if isinstance(item, slice):
            shape.append(found.shape[axis])
            strides.append(found.strides[axis])
        axis += 1
    return Spec(tuple(shape), spec.dtype, tuple(strides), found.offset)


def _fill_axes(spec: Spec, items: tuple[Any, ...]) -> list[Any]:
    """Return one index for each axis, and None for each new one."""
    rank = len(spec.shape)
    taken = sum(item is not None and item is not Ellipsis for item in items)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if taken > rank:
        raise ShapeError(f"index: {taken} indices, {spec.shape} has {rank} axes")
    if len(dots) > 1:
        raise ShapeError(f"index: {len(dots)} of ..., needs at most one")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (rank - taken), *items[at + 1 :]]


def _bounds(item: Any, extent: int) -> tuple[int, int, int]:  # noqa: ANN401
    if isinstance(item, slice):
        return _range(cast("slice[Any, Any, Any]", item), extent)
    try:
        # `operator.index` would take True as 1.
        place = None if isinstance(item, bool | Node) else operator.index(item)
    except TypeError:
        place = None
    if place is None:
        raise DTypeError(
            f"index: {describe(item)}, needs integers, slices, ... or None; {_ELSEWHERE}"
        )
    if not -extent <= place < extent:
        raise ShapeError(f"index: {place}, the axis has {extent} values")
    return place % extent, place % extent + 1, 1


def _range(item: slice[Any, Any, Any], extent: int) -> tuple[int, int, int]:
    try:
        if item.step is not None and operator.index(item.step) < 1:
            raise ShapeError(
                f"index: step {item.step}, needs at least 1; take_axes with ids n - 1 to 0 turns "
                "an axis round"
            )
        start, stop, step = item.indices(extent)
    except TypeError:
        raise DTypeError(f"index: {item}, needs whole numbers or nothing between colons") from None
    return start, max(start, stop), step
