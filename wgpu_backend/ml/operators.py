"""Python's operators of a tensor. The other operand may be a number, a list or a NumPy array.

A number takes the type of the tensor beside it. ``==`` compares values and makes a tensor of bool;
whether two names are one tensor says ``is``, and tensors are hashed by identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, cast

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import DTypeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ml.host_view import HostView
from wgpu_backend.ops.check import FLOATS, shown
from wgpu_backend.ops.constants import is_numbers
from wgpu_backend.ops.elementwise import arithmetic, bitwise, comparison, division, pointwise
from wgpu_backend.ops.linear import products

Operand = Any  # Tensor, number or array-like; ops refuse the rest by name


def _comparable(other: object) -> bool:
    return isinstance(other, Node) or is_numbers(other)


class Operators(HostView):
    """A node with Python's operators."""

    __slots__ = ()
    # NumPy leaves an operator between an array and a tensor to the tensor.
    __array_ufunc__: ClassVar[None] = None
    __hash__ = Node.__hash__

    def _made(self, op: Callable[..., Node], a: Operand, b: Operand) -> Self:
        return cast("Self", op(a, b))

    def __add__(self, other: Operand) -> Self:
        return self._made(arithmetic.add, self, other)

    def __radd__(self, other: Operand) -> Self:
        return self._made(arithmetic.add, self, other)

    def __sub__(self, other: Operand) -> Self:
        return self._made(arithmetic.sub, self, other)

    def __rsub__(self, other: Operand) -> Self:
        if isinstance(other, int | float) and self.dtype in FLOATS:
            return cast("Self", arithmetic.scale(self, factor=-1.0, bias=other))
        return self._made(arithmetic.sub, other, self)

    def __mul__(self, other: Operand) -> Self:
        return self._made(arithmetic.mul, self, other)

    def __rmul__(self, other: Operand) -> Self:
        return self._made(arithmetic.mul, self, other)

    def __truediv__(self, other: Operand) -> Self:
        return self._made(arithmetic.div, self, other)

    def __rtruediv__(self, other: Operand) -> Self:
        return self._made(arithmetic.div, other, self)

    def __floordiv__(self, other: Operand) -> Self:
        return self._made(division.floor_divide, self, other)

    def __rfloordiv__(self, other: Operand) -> Self:
        return self._made(division.floor_divide, other, self)

    def __mod__(self, other: Operand) -> Self:
        return self._made(division.remainder, self, other)

    def __rmod__(self, other: Operand) -> Self:
        return self._made(division.remainder, other, self)

    def __lshift__(self, other: Operand) -> Self:
        return self._made(bitwise.left_shift, self, other)

    def __rlshift__(self, other: Operand) -> Self:
        return self._made(bitwise.left_shift, other, self)

    def __rshift__(self, other: Operand) -> Self:
        return self._made(bitwise.right_shift, self, other)

    def __rrshift__(self, other: Operand) -> Self:
        return self._made(bitwise.right_shift, other, self)

    def __pow__(self, other: Operand) -> Self:
        return self._made(arithmetic.power, self, other)

    def __rpow__(self, other: Operand) -> Self:
        return self._made(arithmetic.power, other, self)

    def __matmul__(self, other: Operand) -> Self:
        return self._made(products.matmul, self, self._matrix(other))

    def __rmatmul__(self, other: Operand) -> Self:
        return self._made(products.matmul, self._matrix(other), self)

    def _matrix(self, other: Operand) -> Operand:
        if isinstance(other, Node):
            return other
        if not is_numbers(other):
            raise DTypeError(f"matmul: got {shown(other)}, needs a tensor or an array")
        return self.owner().from_numpy(other, F32)

    def __neg__(self) -> Self:
        return cast("Self", pointwise.neg(self))

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return cast("Self", pointwise.abs(self))

    def __invert__(self) -> Self:
        return cast("Self", bitwise.bitwise_not(self))

    def __and__(self, other: Operand) -> Self:
        return self._made(bitwise.bitwise_and, self, other)

    def __or__(self, other: Operand) -> Self:
        return self._made(bitwise.bitwise_or, self, other)

    def __xor__(self, other: Operand) -> Self:
        return self._made(bitwise.bitwise_xor, self, other)

    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    # What is no number is equal to no tensor, as Python has it for other types.

    def __eq__(self, other: object) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not _comparable(other):
            return NotImplemented
        return self._made(comparison.equal, self, other)

    def __ne__(self, other: object) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not _comparable(other):
            return NotImplemented
        return self._made(comparison.not_equal, self, other)

    def __lt__(self, other: Operand) -> Self:
        return self._made(comparison.less, self, other)

    def __le__(self, other: Operand) -> Self:
        return self._made(comparison.less_equal, self, other)

    def __gt__(self, other: Operand) -> Self:
        return self._made(comparison.greater, self, other)

    def __ge__(self, other: Operand) -> Self:
        return self._made(comparison.greater_equal, self, other)
