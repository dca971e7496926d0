"""Whole numbers near each value: floor, ceil, trunc and round."""

from __future__ import annotations

import numpy as np

from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.elementwise.activation import unary
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(trusted=True)
def floor(x: Node) -> Launch:
    """Largest whole number that is not above the value.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense, with its sign, that of a zero too; infinities and NaN as they are.
    """
    return unary("floor", x)


@floor.reference
def floor_reference(x: Array) -> Array:
    """Whole number not above."""
    return np.floor(x)


@op(trusted=True)
def ceil(x: Node) -> Launch:
    """Smallest whole number that is not below the value; see `floor`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense, with its sign, that of a zero too; infinities and NaN as they are.
    """
    return unary("ceil", x)


@ceil.reference
def ceil_reference(x: Array) -> Array:
    """Whole number not below."""
    return np.ceil(x)


@op(trusted=True)
def trunc(x: Node) -> Launch:
    """Value without its fraction; see `floor`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense, with its sign, that of a zero too; infinities and NaN as they are.
    """
    return unary("trunc", x)


@trunc.reference
def trunc_reference(x: Array) -> Array:
    """Without the fraction."""
    return np.trunc(x)


@op(trusted=True)
def round(x: Node) -> Launch:
    """Whole number nearest to the value, the even one of two; see `floor`.

    Parameters
    ----------
    x : (...), f32, f16 or bf16

    Returns
    -------
    Like `x`, dense, with its sign, that of a zero too; infinities and NaN as they are.
    """
    return unary("round", x)


@round.reference
def round_reference(x: Array) -> Array:
    """Nearest whole number."""
    return np.rint(x)
