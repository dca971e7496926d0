"""NumPy twins of `wgpu_backend.ops.elementwise.bitwise`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def bitwise_and(a: Array, b: Array) -> Array:
    """Bits of both."""
    return a & b


@twin
def bitwise_or(a: Array, b: Array) -> Array:
    """Bits of either."""
    return a | b


@twin
def bitwise_xor(a: Array, b: Array) -> Array:
    """Bits of one of them."""
    return a ^ b


@twin
def bitwise_not(x: Array) -> Array:
    """Bits it does not have."""
    return ~x


@twin
def left_shift(a: Array, b: Array) -> Array:
    """Bits moved up."""
    return np.left_shift(a, b)


@twin
def right_shift(a: Array, b: Array) -> Array:
    """Bits moved down."""
    return np.right_shift(a, b)
