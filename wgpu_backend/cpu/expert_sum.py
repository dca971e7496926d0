"""NumPy twin of `wgpu_backend.ops.moe.expert_sum`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def expert_sum(
    x: Array,
    weights: Array | None = None,
    addend: Array | None = None,
    *,
    factor: float = 1.0,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """Weighted sum over the second axis, scaled, plus another tensor."""
    each = x if weights is None else x * weights.reshape(*x.shape[:2], 1)
    y = each.sum(1) * np.float32(factor)
    y = y if addend is None else y + addend.reshape(y.shape)
    return y if shape is None else y.reshape(shape)
