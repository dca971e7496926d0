"""NumPy twins of `wgpu_backend.ops.elementwise`."""

from __future__ import annotations

from wgpu_backend.cpu.twin import Array, twin


@twin
def add(a: Array, b: Array) -> Array:
    """Sum."""
    return a + b


@twin
def sub(a: Array, b: Array) -> Array:
    """Difference."""
    return a - b


@twin
def mul(a: Array, b: Array) -> Array:
    """Product."""
    return a * b


@twin
def div(a: Array, b: Array) -> Array:
    """Quotient."""
    return a / b


@twin
def scale(x: Array, *, factor: float, bias: float = 0.0) -> Array:
    """Multiple and sum with numbers."""
    return x * x.dtype.type(factor) + x.dtype.type(bias)
