"""The array: values on a device, or the promise of them, with NumPy's operators.

`a += b` and `a[index] = b` give the name another array; other names for the old one keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, Self

from wgpu_backend.array import elementwise, indexing, linalg, reductions, shaping
from wgpu_backend.array.core import Core
from wgpu_backend.device_info import DeviceInfo
from wgpu_backend.graph.spec import Extents

Operand = Any  # array, number, list or NumPy's array


class Array(Core):
    """An array on a device: ``wx.array([[1, 2], [3, 4]])``.

    Parameters
    ----------
    values : array-like
        Numbers, lists, NumPy's arrays, or arrays.
    dtype : DType, str or NumPy type, or None
        None keeps NumPy's types, and takes bool, int32 and float32 for Python's numbers.
    device : DeviceInfo, str or None
        None is the default device.

    Raises
    ------
    DTypeError, ShapeError
        A value does not fit the type, or lists have rows of several lengths.
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves operators between its arrays and these to these
    __hash__ = object.__hash__

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        import wgpu_backend.array as namespace

        return namespace

    def to_device(self, device: str | DeviceInfo, /, *, stream: object = None) -> Array:
        """Array with these values on another device; itself where it is there."""
        from wgpu_backend.array import devices

        target = devices.on(device)
        if target is self.session:
            return self
        return Array(self.numpy(), self.dtype, device=device)

    # Arithmetic.

    def __add__(self, other: Operand) -> Array:
        return elementwise.add(self, other)

    def __radd__(self, other: Operand) -> Array:
        return elementwise.add(other, self)

    def __sub__(self, other: Operand) -> Array:
        return elementwise.subtract(self, other)

    def __rsub__(self, other: Operand) -> Array:
        return elementwise.subtract(other, self)

    def __mul__(self, other: Operand) -> Array:
        return elementwise.multiply(self, other)

    def __rmul__(self, other: Operand) -> Array:
        return elementwise.multiply(other, self)

    def __truediv__(self, other: Operand) -> Array:
        return elementwise.divide(self, other)

    def __rtruediv__(self, other: Operand) -> Array:
        return elementwise.divide(other, self)

    def __pow__(self, other: Operand) -> Array:
        return elementwise.power(self, other)

    def __rpow__(self, other: Operand) -> Array:
        return elementwise.power(other, self)

    def __matmul__(self, other: Operand) -> Array:
        return linalg.matmul(self, other)

    def __rmatmul__(self, other: Operand) -> Array:
        return linalg.matmul(other, self)

    def __neg__(self) -> Array:
        return elementwise.negative(self)

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return elementwise.abs(self)

    # Comparisons.

    def __eq__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        return elementwise.equal(self, other) if indexing.is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        return elementwise.not_equal(self, other) if indexing.is_operand(other) else NotImplemented

    def __lt__(self, other: Operand) -> Array:
        return elementwise.less(self, other)

    def __le__(self, other: Operand) -> Array:
        return elementwise.less_equal(self, other)

    def __gt__(self, other: Operand) -> Array:
        return elementwise.greater(self, other)

    def __ge__(self, other: Operand) -> Array:
        return elementwise.greater_equal(self, other)

    # Parts.

    def __getitem__(self, index: Any, /) -> Array:
        return indexing.getitem(self, index)

    def __setitem__(self, index: Any, values: Operand, /) -> None:
        self.node = indexing.updated(self, index, values).node

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    # Shapes.

    @property
    def T(self) -> Array:
        """View with the axes reversed."""
        return shaping.permute_dims(self)

    @property
    def mT(self) -> Array:
        """View with the last two axes exchanged."""
        return shaping.matrix_transpose(self)

    def astype(self, dtype: Any) -> Array:
        """Array of another type; itself where it is of that type."""
        return shaping.astype(self, dtype, copy=False)

    def reshape(self, *shape: Extents) -> Array:
        """Same values under another shape; one extent may be -1."""
        return shaping.reshape(self, *shape)

    def transpose(self, *axes: Any) -> Array:
        """View with the axes in another order; reversed where none is given."""
        return shaping.transpose(self, *axes)

    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Array:
        """Array with the axes from one to another joined."""
        return shaping.flatten(self, start_axis, end_axis)

    def squeeze(self, axis: Any = None) -> Array:
        """View without axes of one value."""
        return shaping.squeeze(self, axis)

    def moveaxis(self, source: int, destination: int) -> Array:
        """View with an axis at another place."""
        return shaping.moveaxis(self, source, destination)

    def swapaxes(self, a: int, b: int) -> Array:
        """View with two axes exchanged."""
        return shaping.swapaxes(self, a, b)

    def split(self, sections: Any, axis: int = 0) -> list[Array]:
        """Views of an axis in equal parts, or cut at these places."""
        return shaping.split(self, sections, axis)

    # Reductions.

    def sum(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Sum over axes."""
        return reductions.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Mean over axes."""
        return reductions.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Largest value over axes."""
        return reductions.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Smallest value over axes."""
        return reductions.min(self, axis=axis, keepdims=keepdims)

    def eval(self) -> Self:
        """Compute it; the array itself."""
        self.session.evaluate([self.node])
        return self


array = Array
