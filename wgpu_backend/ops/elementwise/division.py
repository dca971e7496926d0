"""Division that is rounded down, as Python's ``//`` and ``%`` have it, of floats and integers."""

from __future__ import annotations

import numpy as np

from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.elementwise.arithmetic import float_or_whole
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(trusted=True, constants=("a", "b"))
def floor_divide(a: Node, b: Node) -> Launch:
    """Largest whole number that is not above the quotient: ``a // b``.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast; or of one integer type
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`, as NumPy has it: of integers by zero 0, of
    floats by zero infinite or NaN, of infinities by numbers infinite. Quotients of
    floats from 2²³ on may be off by 3 units in the last place.
    """
    return float_or_whole("floor_divide", a, b, "ops/elementwise/floor_divide_whole")


@floor_divide.reference
def floor_divide_reference(a: Array, b: Array) -> Array:
    """Quotient, rounded down; an infinity by a number is one, where NumPy has NaN."""
    found = np.floor_divide(a, b)
    if a.dtype.kind != "f":
        return found
    return np.where(np.isinf(a) & np.isfinite(b), np.where(np.signbit(b), -a, a), found)


@op(trusted=True, constants=("a", "b"))
def remainder(a: Node, b: Node) -> Launch:
    """What is left of `a` by `floor_divide`, with the sign of `b`: ``a % b``.

    Of floats it is exact but for the one sum that moves it to the sign of `b`. Of integers by zero
    it is 0, of floats NaN; see `floor_divide`.
    """
    return float_or_whole("remainder", a, b, "ops/elementwise/remainder_whole")


@remainder.reference
def remainder_reference(a: Array, b: Array) -> Array:
    """What is left of it."""
    return np.remainder(a, b)
