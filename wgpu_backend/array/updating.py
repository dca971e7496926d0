"""``x.at[index].add(values)``: values folded into places of an array, which may repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wgpu_backend.array.conversion import convert, flatten_node
from wgpu_backend.array.core import wrap
from wgpu_backend.array.indexing import locate_values
from wgpu_backend.array.lifting import write_out
from wgpu_backend.array.types import FLOATING
from wgpu_backend.errors import DTypeError
from wgpu_backend.ops.index import accumulating
from wgpu_backend.ops.shape.shapes import reshape_node

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def _negative(x: Array) -> Array:
    return -x


def _reciprocal(x: Array) -> Array:
    return 1 / x


class Places:
    """Places of an array, to fold values into."""

    def __init__(self, x: Array, index: Any = ...) -> None:
        self._x, self._index = x, index

    def __getitem__(self, index: Any) -> Places:
        return Places(self._x, index)

    def add(self, values: Any) -> Array:
        """Array with values added."""
        return self._folded(values, "add")

    def subtract(self, values: Any) -> Array:
        """Array with values taken away."""
        return self._folded(values, "add", _negative)

    def multiply(self, values: Any) -> Array:
        """Array multiplied by values."""
        return self._folded(values, "mul")

    def divide(self, values: Any) -> Array:
        """Array of floats divided by values."""
        if self._x.dtype not in FLOATING:
            raise DTypeError(f"at[].divide: {self._x.dtype}, needs floats")
        return self._folded(values, "mul", _reciprocal)

    def maximum(self, values: Any) -> Array:
        """Array with the larger of its values and others."""
        return self._folded(values, "max")

    def minimum(self, values: Any) -> Array:
        """Array with the smaller of its values and others."""
        return self._folded(values, "min")

    def _folded(self, values: Any, mode: str, change: Any = None) -> Array:
        x = self._x
        ids, given = locate_values(x, self._index, values)
        if not given.spec.size:
            return wrap(x.node)
        if change is not None:
            given = change(wrap(given)).node
        row = flatten_node(write_out(x.node, x.shape))
        found = accumulating.fold_at(row, flatten_node(ids), flatten_node(given), 0, mode)
        return wrap(reshape_node(convert(found, x.dtype), x.shape))
