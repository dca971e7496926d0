"""Bitwise ops of integers and bools: and, or, xor, not, and shifts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import BOOL
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.elementwise.launches import INTEGERS, WIDE, binary, is_signed, unary
from wgpu_backend.ops.elementwise.makers import op_maker

_WORDS = (*INTEGERS, *WIDE, BOOL)


@op_maker(constants=("a", "b"))
def _bitwise_op(name: str, a: Node, b: Node) -> Launch:
    """Launch an op on the bits of two integers or bools.

    Parameters
    ----------
    a, b : (...), both of one integer type, or bool; shapes that broadcast
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`.

    Raises
    ------
    ShapeError
        The shapes do not broadcast.
    DTypeError
        Other types, or two of them.
    """
    return binary(name, a, b, _WORDS)


@op_maker()
def _not_op(name: str, x: Node) -> Launch:
    """Launch the inversion of bits, which has a shader of its own for bool.

    Parameters
    ----------
    x : (...), an integer, or bool

    Returns
    -------
    Like `x`, dense.
    """
    # Inverting all bits of a bool would give 254 or 255, not 0 or 1.
    if x.spec.dtype == BOOL:
        made = unary(name, x, _WORDS, choices={"Out": "u32"})
        return replace(made, shader="ops/elementwise/logical_not")
    return unary(name, x, _WORDS)


@op_maker(constants=("a", "b"))
def _shift_op(name: str, a: Node, b: Node) -> Launch:
    """Launch a shift.

    Parameters
    ----------
    a, b : (...), both of one integer type, shapes that broadcast
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`.
    """
    # Only a shift to the right depends on the sign.
    choices = {"SIGNED": is_signed(a.spec.dtype)} if name == "right_shift" else None
    return binary(name, a, b, (*INTEGERS, *WIDE), choices)


bitwise_and = _bitwise_op("bitwise_and", np.bitwise_and, "Return the bits that are set in both.")
bitwise_or = _bitwise_op("bitwise_or", np.bitwise_or, "Return the bits set in one, or in both.")
bitwise_xor = _bitwise_op("bitwise_xor", np.bitwise_xor, "Return the bits set in only one.")
bitwise_not = _not_op("bitwise_not", np.invert, "Return the bits that are not set.")
left_shift = _shift_op(
    "left_shift",
    np.left_shift,
    "Shift the bits of `a` up by `b` places: ``a << b``.",
    "The result is 0 where `b` is negative or not below the number of bits, as in NumPy.",
)
right_shift = _shift_op(
    "right_shift",
    np.right_shift,
    "Shift the bits of `a` down by `b` places and fill up with its sign: ``a >> b``.",
    """\
Where `b` is negative or not below the number of bits, the result is 0, or -1 of negative
numbers.""",
)
