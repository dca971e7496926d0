"""NumPy twins of `wgpu_backend.ops.elementwise.comparison`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def equal(a: Array, b: Array) -> Array:
    """Same."""
    return a == b


@twin
def not_equal(a: Array, b: Array) -> Array:
    """Another."""
    return a != b


@twin
def less(a: Array, b: Array) -> Array:
    """Below."""
    return a < b


@twin
def less_equal(a: Array, b: Array) -> Array:
    """At most."""
    return a <= b


@twin
def greater(a: Array, b: Array) -> Array:
    """Above."""
    return a > b


@twin
def greater_equal(a: Array, b: Array) -> Array:
    """At least."""
    return a >= b


@twin
def logical_and(a: Array, b: Array) -> Array:
    """Both."""
    return a & b


@twin
def logical_or(a: Array, b: Array) -> Array:
    """One, or both."""
    return a | b


@twin
def logical_xor(a: Array, b: Array) -> Array:
    """One of the two."""
    return a ^ b


@twin
def logical_not(x: Array) -> Array:
    """Return the other one."""
    return ~x


@twin
def where(condition: Array, a: Array, b: Array) -> Array:
    """Choose."""
    return np.where(condition, a, b)
