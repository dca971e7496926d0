"""Functions of the values that are in an array, each once.

Computed on the device; the host reads how many values there are, since shapes depend on it.
NaN equals nothing, so each is a value of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wgpu_backend.array.conversion import flatten_node
from wgpu_backend.array.core import wrap
from wgpu_backend.array.creation import arange, full, ones
from wgpu_backend.array.lifting import as_node, promote_operands
from wgpu_backend.array.operators import equal, minimum
from wgpu_backend.array.ordering import argsort, sort
from wgpu_backend.array.places import find_true
from wgpu_backend.array.scans import cumsum
from wgpu_backend.array.searching import put_along_axis, searchsorted, take
from wgpu_backend.array.shaping import concat
from wgpu_backend.dtypes import BOOL, I32

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Array
    inverse_indices: Array


class _Runs(NamedTuple):
    """Values in order, and where runs of equal ones begin among them."""

    ordered: Array
    order: Array
    first: Array  # bool: whether a value is the first of its run
    begin: Array  # where runs begin


def _runs(name: str, x: Array) -> _Runs:
    row = wrap(flatten_node(as_node(name, x)))
    order = argsort(row)
    ordered = take(row, order)
    begins = ones((min(row.size, 1),), BOOL, device=x.session)
    first = concat([begins, ordered[1:] != ordered[:-1]])
    return _Runs(ordered, order, first, wrap(find_true(first.node)[0]))


def _counts(x: Array, runs: _Runs) -> Array:
    end = arange(x.size, x.size + 1, dtype=I32, device=x.session)
    return concat([runs.begin[1:], end])[: runs.begin.size] - runs.begin


def _inverse(x: Array, runs: _Runs) -> Array:
    numbers = cumsum(runs.first.astype(I32), 0) - 1
    return put_along_axis(runs.order, runs.order, numbers, axis=0).reshape(x.shape)


def unique_values(x: Array, /) -> Array:
    """Values of an array, each once, ascending."""
    runs = _runs("unique_values", x)
    return take(runs.ordered, runs.begin)


def unique_counts(x: Array, /) -> UniqueCounts:
    """Values of an array, each once, and how often each is there."""
    runs = _runs("unique_counts", x)
    return UniqueCounts(take(runs.ordered, runs.begin), _counts(x, runs))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Values of an array, each once, and for each value of the array its place among them."""
    runs = _runs("unique_inverse", x)
    return UniqueInverse(take(runs.ordered, runs.begin), _inverse(x, runs))


def unique_all(x: Array, /) -> UniqueAll:
    """Values, each once, with their first places, the inverse and the counts."""
    runs = _runs("unique_all", x)
    values, first = take(runs.ordered, runs.begin), take(runs.order, runs.begin)
    return UniqueAll(values, first, _inverse(x, runs), _counts(x, runs))


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Whether each value of `x1` is among those of `x2`, or is not with `invert`; NaN is not."""
    wanted, among = (wrap(n) for n in promote_operands("isin", x1, x2))
    if not among.size:
        return full(wanted.shape, invert, BOOL, device=wanted.session)
    ordered = sort(among, axis=None)
    at = minimum(searchsorted(ordered, wanted), among.size - 1)
    found = equal(take(ordered, at), wanted)
    return ~found if invert else found
