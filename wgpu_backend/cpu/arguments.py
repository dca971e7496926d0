"""NumPy twins of `wgpu_backend.ops.reduce.arguments`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def argument(x: Array, *, axis: int, smallest: bool) -> Array:
    """Index of an extreme along an axis."""
    return (np.argmin if smallest else np.argmax)(x, axis=axis).reshape(-1)
