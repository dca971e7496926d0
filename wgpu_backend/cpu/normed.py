"""NumPy twins of `wgpu_backend.ops.linear.normed`, and what products make of their rows."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.linear.normed import SQUARED, square_count


@twin
def norm_weighted(x: Array, weight: Array) -> Array:
    """Weighted rows, and the squares of the rows behind them."""
    *lead, k = x.shape
    count = square_count(k)
    padded = np.zeros((*lead, count * SQUARED), x.dtype)
    padded[..., :k] = x * x
    squares = padded.reshape(*lead, count, SQUARED).sum(axis=-1)
    return np.concatenate([x * weight, squares], axis=-1)


def normed(rows: Array, k: int, eps: float | None) -> Array:
    """Values of rows, of which those from `norm_weighted` get the factor of the norm."""
    if eps is None:
        return rows
    squares = rows[..., k:].sum(axis=-1, keepdims=True)
    return rows[..., :k] / np.sqrt(squares / np.float32(k) + np.float32(eps))
