"""What the bits of floats say: isnan, isinf, isfinite, signbit; and what is made of them."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import BOOL, F16, F32
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.elementwise.activation import unary
from wgpu_backend.ops.elementwise.arithmetic import binary
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array, takes_f16


@op(trusted=True)
def isnan(x: Node) -> Launch:
    """Whether a value is not a number.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Tensor of the shape of `x`, bool.
    """
    return unary("isnan", x, choices={"Out": "u32"}, result=BOOL)


@isnan.reference
def isnan_reference(x: Array) -> Array:
    """Whether it is no number."""
    return np.isnan(x)


@op(trusted=True)
def isinf(x: Node) -> Launch:
    """Whether a value is infinite, of either sign; see `isnan`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Tensor of the shape of `x`, bool.
    """
    return unary("isinf", x, choices={"Out": "u32"}, result=BOOL)


@isinf.reference
def isinf_reference(x: Array) -> Array:
    """Whether it is infinite."""
    return np.isinf(x)


@op(trusted=True)
def isfinite(x: Node) -> Launch:
    """Whether a value is neither infinite nor NaN; see `isnan`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Tensor of the shape of `x`, bool.
    """
    return unary("isfinite", x, choices={"Out": "u32"}, result=BOOL)


@isfinite.reference
def isfinite_reference(x: Array) -> Array:
    """Whether it is a finite number."""
    return np.isfinite(x)


@op(trusted=True)
def signbit(x: Node) -> Launch:
    """Whether the sign of a value is set, that of a zero or NaN too; see `isnan`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Tensor of the shape of `x`, bool.
    """
    return unary("signbit", x, choices={"Out": "u32"}, result=BOOL)


@signbit.reference
def signbit_reference(x: Array) -> Array:
    """Whether the sign is set."""
    return np.signbit(x)


@op(trusted=True, constants=("a", "b"))
def copysign(a: Node, b: Node) -> Launch:
    """Size of `a` with the sign of `b`, value by value.

    Parameters
    ----------
    a, b : (...), f32, f16 or bf16, shapes that broadcast
        One may be a number or an array; zeros and NaN have signs too.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`.
    """
    return binary("copysign", a, b)


@copysign.reference
def copysign_reference(a: Array, b: Array) -> Array:
    """Size of one, sign of the other."""
    return np.copysign(a, b)


@op(trusted=True, constants=("a", "b"))
def nextafter(a: Node, b: Node) -> Launch:
    """Number of the type next to `a` in the direction of `b`; `b` where they are equal.

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
        The types are others, or not the same.
    """
    return binary("nextafter", a, b, (F32, F16), {"HALF": a.spec.dtype == F16}, mixed=False)


@nextafter.reference
@takes_f16
def nextafter_reference(a: Array, b: Array) -> Array:
    """Neighbour in its own type."""
    return np.nextafter(a, b)
