"""NumPy twins of `wgpu_backend.ops.elementwise.float_bits`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, takes_f16, twin


@twin
def isnan(x: Array) -> Array:
    """Whether it is no number."""
    return np.isnan(x)


@twin
def isinf(x: Array) -> Array:
    """Whether it is infinite."""
    return np.isinf(x)


@twin
def isfinite(x: Array) -> Array:
    """Whether it is a finite number."""
    return np.isfinite(x)


@twin
def signbit(x: Array) -> Array:
    """Whether the sign is set."""
    return np.signbit(x)


@twin
def copysign(a: Array, b: Array) -> Array:
    """Size of one, sign of the other."""
    return np.copysign(a, b)


@twin
@takes_f16
def nextafter(a: Array, b: Array) -> Array:
    """Neighbour in its own type."""
    return np.nextafter(a, b)
