"""Tests of the bits of floats (isnan, isinf, isfinite, signbit), and ops that change them."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import BOOL, F16, F32
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.elementwise.launches import binary, unary
from wgpu_backend.ops.elementwise.makers import binary_op, op_maker
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array, takes_f16


@op_maker()
def _float_test(name: str, x: Node) -> Launch:
    """Launch a test of floats.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Tensor of the shape of `x`, bool.
    """
    return unary(name, x, choices={"Out": "u32"}, result=BOOL)


isnan = _float_test("isnan", np.isnan, "Return whether a value is NaN.")
isinf = _float_test("isinf", np.isinf, "Return whether a value is infinite, of either sign.")
isfinite = _float_test("isfinite", np.isfinite, "Return whether a value is not infinite or NaN.")
signbit = _float_test(
    "signbit", np.signbit, "Return whether the sign of a value is set, also of -0.0 and NaN."
)
copysign = binary_op(
    "copysign",
    np.copysign,
    "Return the magnitude of `a` with the sign of `b`, value by value.",
    "Zeros and NaN have signs too.",
)


@op(trusted=True, constants=("a", "b"))
def nextafter(a: Node, b: Node) -> Launch:
    """Return the number of the type next to `a` in the direction of `b`; `b` if they are equal.

    Parameters
    ----------
    a, b : (...), both f32 or both f16, shapes that broadcast
        One may be a number or an array.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`.

    Raises
    ------
    DTypeError
        Other types, or two of them.
    """
    return binary("nextafter", a, b, (F32, F16), {"HALF": a.spec.dtype == F16}, mixed=False)


# An f16 widened to f32 would have other neighbours.
@nextafter.reference
@takes_f16
def nextafter_reference(a: Array, b: Array) -> Array:
    """Return the next number of the operands' own type."""
    return np.nextafter(a, b)
