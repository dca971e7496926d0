"""NumPy twins of `wgpu_backend.ops.elementwise.rectifiers`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def relu6(x: Array) -> Array:
    """Value from 0 to 6."""
    return np.clip(x, 0, 6)


@twin
def relu_squared(x: Array) -> Array:
    """Square of relu."""
    return np.square(np.maximum(x, 0))


@twin
def hardsigmoid(x: Array) -> Array:
    """Sigmoid of straight pieces."""
    return np.clip((x + 3) / 6, 0, 1)


@twin
def hardswish(x: Array) -> Array:
    """Value times hardsigmoid, which is 0 for the smallest."""
    return np.where(x <= -3, 0, np.where(x >= 3, x, x * (x + 3) / 6))


@twin
def selu(x: Array) -> Array:
    """Scaled exponential unit."""
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


@twin
def elu(x: Array, alpha: float = 1.0) -> Array:
    """Exponential below zero."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@twin
def celu(x: Array, alpha: float = 1.0) -> Array:
    """Exponential of a part below zero."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))


@twin
def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """A part below zero."""
    return np.where(x > 0, x, x * x.dtype.type(negative_slope))


@twin
def hard_shrink(x: Array, lambd: float = 0.5) -> Array:
    """Large values."""
    return np.where(np.abs(x) <= x.dtype.type(lambd), 0, x)


@twin
def softshrink(x: Array, lambd: float = 0.5) -> Array:
    """Values moved towards zero."""
    kind = x.dtype.type
    rest = np.maximum(np.abs(x) - kind(lambd), kind(0))
    return np.where(rest == 0, kind(0), np.copysign(rest, x))


@twin
def step(x: Array, threshold: float = 0.0) -> Array:
    """Whether a value is above a threshold, as a number."""
    return (x > x.dtype.type(threshold)).astype(x.dtype)


@twin
def hardtanh(x: Array, low: float = -1.0, high: float = 1.0) -> Array:
    """Value within bounds."""
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


@twin
def prelu(x: Array, weight: Array) -> Array:
    """A weight times what is below zero."""
    return np.where(x > 0, x, x * weight)
