"""The array: values on a device, or the promise of them, with NumPy's operators.

`a += b` and `a[index] = b` give the name another array; other names for the old one keep it.
Operators and methods are functions of this package. Those make arrays, so they know only
`base.ArrayBase`, and the class that has them as methods comes after them all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Self

from wgpu_backend.array import (
    elementwise,
    indexing,
    manipulation,
    operators,
    products,
    reductions,
    scans,
    sorting,
)
from wgpu_backend.array.base import ArrayBase, wrap
from wgpu_backend.array.indexing import Places
from wgpu_backend.array.operators import Binary
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.spec import Extents, extents

Operand = Any  # array, number, list or NumPy's array


def _reflect(function: Binary) -> Binary:
    """Make the method for ``number <operator> array``: the array is the second operand."""

    def method(self: Any, other: Operand, /) -> Array:
        return function(other, self)

    return method


class Array(ArrayBase):
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
    # None makes NumPy return NotImplemented for `numpy_array + array`, so that Python calls
    # `__radd__` here. Otherwise NumPy would add each value by itself.
    __array_ufunc__ = None
    # Defining `__eq__` drops the inherited hash. Arrays are keys by identity, as in MLX.
    __hash__ = object.__hash__

    # Operators.

    __add__, __radd__ = operators.add, _reflect(operators.add)
    __sub__, __rsub__ = operators.subtract, _reflect(operators.subtract)
    __mul__, __rmul__ = operators.multiply, _reflect(operators.multiply)
    __truediv__, __rtruediv__ = operators.divide, _reflect(operators.divide)
    __pow__, __rpow__ = operators.power, _reflect(operators.power)
    __floordiv__, __rfloordiv__ = operators.floor_divide, _reflect(operators.floor_divide)
    __mod__, __rmod__ = operators.remainder, _reflect(operators.remainder)
    __divmod__ = operators.divmod
    __matmul__, __rmatmul__ = products.matmul, _reflect(products.matmul)
    __neg__, __pos__, __abs__ = elementwise.negative, elementwise.positive, elementwise.abs

    __and__, __rand__ = operators.bitwise_and, _reflect(operators.bitwise_and)
    __or__, __ror__ = operators.bitwise_or, _reflect(operators.bitwise_or)
    __xor__, __rxor__ = operators.bitwise_xor, _reflect(operators.bitwise_xor)
    __lshift__, __rlshift__ = operators.left_shift, _reflect(operators.left_shift)
    __rshift__, __rrshift__ = operators.right_shift, _reflect(operators.right_shift)
    __invert__ = elementwise.bitwise_invert

    __lt__, __le__ = operators.less, operators.less_equal
    __gt__, __ge__ = operators.greater, operators.greater_equal

    def __eq__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        return operators.equal(self, other) if indexing.is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        return operators.not_equal(self, other) if indexing.is_operand(other) else NotImplemented

    # Functions that are methods under the same name.

    sum, prod, mean = reductions.sum, reductions.prod, reductions.mean
    max, min, var, std = reductions.max, reductions.min, reductions.var, reductions.std
    any, all, logsumexp = reductions.any, reductions.all, reductions.logsumexp
    argmax, argmin = reductions.argmax, reductions.argmin
    cumsum, cumprod, logcumsumexp = scans.cumsum, scans.cumprod, scans.logcumsumexp
    cummax, cummin = scans.cummax, scans.cummin
    sort, argsort, topk = sorting.sort, sorting.argsort, sorting.topk
    diag, diagonal, view = manipulation.diag, manipulation.diagonal, manipulation.view
    transpose, flatten = manipulation.transpose, manipulation.flatten
    squeeze, swapaxes, split = manipulation.squeeze, manipulation.swapaxes, manipulation.split
    abs, round, conj = elementwise.abs, elementwise.round, elementwise.conj
    exp, log, log2, log10 = elementwise.exp, elementwise.log, elementwise.log2, elementwise.log10
    log1p, sqrt, rsqrt = elementwise.log1p, elementwise.sqrt, elementwise.rsqrt
    square, reciprocal = elementwise.square, elementwise.reciprocal
    sin, cos, tanh = elementwise.sin, elementwise.cos, elementwise.tanh

    @property
    def real(self) -> Array:
        """View of real parts; see `wgpu_backend.array.real`."""
        return elementwise.real(self)

    @property
    def imag(self) -> Array:
        """View of imaginary parts; see `wgpu_backend.array.imag`."""
        return elementwise.imag(self)

    @property
    def T(self) -> Array:
        """View with the axes reversed."""
        return manipulation.permute_dims(self)

    @property
    def mT(self) -> Array:
        """View with the last two axes exchanged."""
        return manipulation.matrix_transpose(self)

    def astype(self, dtype: Any) -> Array:
        """Return an array of another type; no copy if it has that type already."""
        return manipulation.astype(self, dtype, copy=False)

    def reshape(self, *shape: Extents) -> Array:
        """Return the same values under another shape; one extent may be -1."""
        return manipulation.reshape(self, extents("reshape", shape))

    def moveaxis(self, source: int, destination: int) -> Array:
        """Return a view with an axis at another place."""
        return manipulation.moveaxis(self, source, destination)

    # Parts.

    def __getitem__(self, index: Any, /) -> Array:
        return indexing.getitem(self, index)

    def __setitem__(self, index: Any, values: Operand, /) -> None:
        # Values never change: the name gets a new node, and views of the old one keep theirs.
        self.node = indexing.setitem(self, index, values).node

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    @property
    def at(self) -> Places:
        """An updater of places: ``x.at[index].add(values)`` returns an array with values added."""
        return Places(self)

    # Devices and packages.

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        # The package, which imports this module.
        return sys.modules[__name__.rpartition(".")[0]]

    def to_device(self, device: object, /, *, stream: object = None) -> Array:
        """Return an array with the same values on another device; itself if it is there already."""
        from wgpu_backend.array import devices

        if stream is not None:
            raise DeviceError(f"to_device: stream {stream!r}, a device has one queue: needs None")
        target = devices.on(device)
        if target is self.session:
            return wrap(self.node)
        return Array(self.numpy(), self.dtype, device=target)

    def __copy__(self) -> Array:
        return wrap(self.node)

    def __deepcopy__(self, memo: object) -> Array:
        # Values never change, so both may share the node.
        return wrap(self.node)

    def __reduce__(self) -> tuple[type[Array], tuple[Any, str]]:
        # A pickle may be read where this device does not exist: the default device takes it.
        return Array, (self.numpy(), self.dtype.name)

    def eval(self) -> Self:
        """Compute the values, and return the array itself."""
        self.session.evaluate([self.node])
        return self


array = Array
