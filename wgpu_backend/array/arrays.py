"""The array: values on a device, or the promise of them, with NumPy's operators.

`a += b` and `a[index] = b` give the name another array; other names for the old one keep it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Self

from wgpu_backend.array import elementwise, indexing, operators, products, shaping
from wgpu_backend.array.core import wrap
from wgpu_backend.array.methods import Methods
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.spec import Extents, extents

Operand = Any  # array, number, list or NumPy's array


class Array(Methods):
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
        return sys.modules[__name__.rpartition(".")[0]]  # it imports this module

    def to_device(self, device: object, /, *, stream: object = None) -> Array:
        """Array with these values on another device; no copy where they are there."""
        from wgpu_backend.array import devices

        if stream is not None:
            raise DeviceError(f"to_device: stream {stream!r}, a device has one queue: needs None")
        target = devices.on(device)
        if target is self.session:
            return wrap(self.node)
        return Array(self.numpy(), self.dtype, device=target)

    # Arithmetic.

    def __add__(self, other: Operand) -> Array:
        return operators.add(self, other)

    def __radd__(self, other: Operand) -> Array:
        return operators.add(other, self)

    def __sub__(self, other: Operand) -> Array:
        return operators.subtract(self, other)

    def __rsub__(self, other: Operand) -> Array:
        return operators.subtract(other, self)

    def __mul__(self, other: Operand) -> Array:
        return operators.multiply(self, other)

    def __rmul__(self, other: Operand) -> Array:
        return operators.multiply(other, self)

    def __truediv__(self, other: Operand) -> Array:
        return operators.divide(self, other)

    def __rtruediv__(self, other: Operand) -> Array:
        return operators.divide(other, self)

    def __pow__(self, other: Operand) -> Array:
        return operators.power(self, other)

    def __rpow__(self, other: Operand) -> Array:
        return operators.power(other, self)

    def __floordiv__(self, other: Operand) -> Array:
        return operators.floor_divide(self, other)

    def __rfloordiv__(self, other: Operand) -> Array:
        return operators.floor_divide(other, self)

    def __mod__(self, other: Operand) -> Array:
        return operators.remainder(self, other)

    def __rmod__(self, other: Operand) -> Array:
        return operators.remainder(other, self)

    def __divmod__(self, other: Operand) -> tuple[Array, Array]:
        return operators.divmod(self, other)

    def __matmul__(self, other: Operand) -> Array:
        return products.matmul(self, other)

    def __rmatmul__(self, other: Operand) -> Array:
        return products.matmul(other, self)

    def __neg__(self) -> Array:
        return elementwise.negative(self)

    def __pos__(self) -> Array:
        return elementwise.positive(self)

    def __abs__(self) -> Array:
        return elementwise.abs(self)

    # Bits.

    def __and__(self, other: Operand) -> Array:
        return operators.bitwise_and(self, other)

    def __rand__(self, other: Operand) -> Array:
        return operators.bitwise_and(other, self)

    def __or__(self, other: Operand) -> Array:
        return operators.bitwise_or(self, other)

    def __ror__(self, other: Operand) -> Array:
        return operators.bitwise_or(other, self)

    def __xor__(self, other: Operand) -> Array:
        return operators.bitwise_xor(self, other)

    def __rxor__(self, other: Operand) -> Array:
        return operators.bitwise_xor(other, self)

    def __lshift__(self, other: Operand) -> Array:
        return operators.left_shift(self, other)

    def __rlshift__(self, other: Operand) -> Array:
        return operators.left_shift(other, self)

    def __rshift__(self, other: Operand) -> Array:
        return operators.right_shift(self, other)

    def __rrshift__(self, other: Operand) -> Array:
        return operators.right_shift(other, self)

    def __invert__(self) -> Array:
        return elementwise.bitwise_invert(self)

    # Comparisons.

    def __eq__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        return operators.equal(self, other) if indexing.is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        return operators.not_equal(self, other) if indexing.is_operand(other) else NotImplemented

    def __lt__(self, other: Operand) -> Array:
        return operators.less(self, other)

    def __le__(self, other: Operand) -> Array:
        return operators.less_equal(self, other)

    def __gt__(self, other: Operand) -> Array:
        return operators.greater(self, other)

    def __ge__(self, other: Operand) -> Array:
        return operators.greater_equal(self, other)

    # What other packages and other devices ask.

    def __copy__(self) -> Array:
        return wrap(self.node)

    def __deepcopy__(self, memo: object) -> Array:
        return wrap(self.node)  # values never change, so both may look at them

    def __reduce__(self) -> tuple[type[Array], tuple[Any, str]]:
        return Array, (self.numpy(), self.dtype.name)  # lies on the default device when read

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
        **options: Any,
    ) -> Any:
        """Capsule of a copy on the host."""
        options |= {"copy": copy} if copy is not None else {}
        return self.numpy().__dlpack__(max_version=max_version, dl_device=dl_device, **options)

    # Parts.

    def __getitem__(self, index: Any, /) -> Array:
        return indexing.getitem(self, index)

    def __setitem__(self, index: Any, values: Operand, /) -> None:
        self.node = indexing.setitem(self, index, values).node

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
        """Array of another type; no copy where it is of that type."""
        return shaping.astype(self, dtype, copy=False)

    def reshape(self, *shape: Extents) -> Array:
        """Same values under another shape; one extent may be -1."""
        return shaping.reshape(self, extents("reshape", shape))

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

    def eval(self) -> Self:
        """Compute it; the array itself."""
        self.session.evaluate([self.node])
        return self


array = Array
