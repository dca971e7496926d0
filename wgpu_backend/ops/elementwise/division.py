"""Division that is rounded down, as Python's ``//`` and ``%`` have it, of floats and integers."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import DType
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.check import FLOATS
from wgpu_backend.ops.elementwise.arithmetic import NUMBERS, binary, is_signed
from wgpu_backend.ops.op import op


def _divided(name: str, a: Node, b: Node, of_integers: str) -> Launch:
    dtype: DType = a.spec.dtype
    if dtype in FLOATS:
        return binary(name, a, b, NUMBERS)
    launch = binary(name, a, b, NUMBERS, {"SIGNED": is_signed(dtype)})
    return replace(launch, shader=of_integers)


@op(trusted=True, constants=("a", "b"))
def floor_divide(a: Node, b: Node) -> Launch:
    """Largest whole number that is not above the quotient: ``a // b``.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast; or of one integer type of up to 32 bits
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`, as NumPy has it: of integers by zero 0, of
    floats by zero infinite or NaN. Quotients of floats from 2²³ on may be off by 3 units in the
    last place.
    """
    return _divided("floor_divide", a, b, "ops/floor_divide_whole")


@op(trusted=True, constants=("a", "b"))
def remainder(a: Node, b: Node) -> Launch:
    """What is left of `a` by `floor_divide`, with the sign of `b`: ``a % b``.

    Of floats it is exact but for the one sum that moves it to the sign of `b`. Of integers by zero
    it is 0, of floats NaN; see `floor_divide`.
    """
    return _divided("remainder", a, b, "ops/remainder_whole")
