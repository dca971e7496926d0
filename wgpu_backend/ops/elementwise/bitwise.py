"""Bits of integers: and, or, xor, not, and shifts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import BOOL
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.elementwise.activation import unary
from wgpu_backend.ops.elementwise.arithmetic import INTEGERS, binary, is_signed
from wgpu_backend.ops.elementwise.wide import WIDE
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

WORDS = (*INTEGERS, *WIDE, BOOL)


@op(trusted=True, constants=("a", "b"))
def bitwise_and(a: Node, b: Node) -> Launch:
    """Bits that two integers both have.

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
        The types are others, or not the same.
    """
    return binary("bitwise_and", a, b, WORDS)


@bitwise_and.reference
def bitwise_and_reference(a: Array, b: Array) -> Array:
    """Bits of both."""
    return a & b


@op(trusted=True, constants=("a", "b"))
def bitwise_or(a: Node, b: Node) -> Launch:
    """Bits that one of two integers has, or both; see `bitwise_and`."""
    return binary("bitwise_or", a, b, WORDS)


@bitwise_or.reference
def bitwise_or_reference(a: Array, b: Array) -> Array:
    """Bits of either."""
    return a | b


@op(trusted=True, constants=("a", "b"))
def bitwise_xor(a: Node, b: Node) -> Launch:
    """Bits that one of two integers has, and not both; see `bitwise_and`."""
    return binary("bitwise_xor", a, b, WORDS)


@bitwise_xor.reference
def bitwise_xor_reference(a: Array, b: Array) -> Array:
    """Bits of one of them."""
    return a ^ b


@op(trusted=True)
def bitwise_not(x: Node) -> Launch:
    """Bits that an integer does not have.

    Parameters
    ----------
    x : (...), an integer, or bool

    Returns
    -------
    Like `x`, dense.
    """
    if x.spec.dtype == BOOL:
        made = unary("bitwise_not", x, WORDS, choices={"Out": "u32"})
        return replace(made, shader="ops/elementwise/logical_not")
    return unary("bitwise_not", x, WORDS)


@bitwise_not.reference
def bitwise_not_reference(x: Array) -> Array:
    """Bits it does not have."""
    return ~x


@op(trusted=True, constants=("a", "b"))
def left_shift(a: Node, b: Node) -> Launch:
    """Bits of `a` moved up by `b` places: ``a << b``.

    Parameters
    ----------
    a, b : (...), both of one integer type, shapes that broadcast
        One may be a number or an array, which takes the type of the other.

    Returns
    -------
    Tensor of the broadcast shape and the dtype of `a`; 0 where `b` is not below the number of bits,
    or negative, as in NumPy.
    """
    return binary("left_shift", a, b, (*INTEGERS, *WIDE))


@left_shift.reference
def left_shift_reference(a: Array, b: Array) -> Array:
    """Bits moved up."""
    return np.left_shift(a, b)


@op(trusted=True, constants=("a", "b"))
def right_shift(a: Node, b: Node) -> Launch:
    """Bits of `a` moved down by `b` places, behind copies of its sign; see `left_shift`.

    Where `b` is not below the number of bits, or negative, it is 0, of negative numbers -1.
    """
    choices = {"SIGNED": is_signed(a.spec.dtype)}
    return binary("right_shift", a, b, (*INTEGERS, *WIDE), choices)


@right_shift.reference
def right_shift_reference(a: Array, b: Array) -> Array:
    """Bits moved down."""
    return np.right_shift(a, b)
