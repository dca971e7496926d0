"""NumPy twins of `wgpu_backend.ops.attention.position`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def rope_table(positions: Array, frequencies: Array, *, magnitude: float = 1.0) -> Array:
    """Cosine and sine of every position times every frequency."""
    angles = positions[:, None].astype(np.float32) * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1) * np.float32(magnitude)


@twin
def rope_table_axes(
    positions: Array,
    frequencies: Array,
    axes: Array,
    *,
    count: int = 4,
    magnitude: float = 1.0,
) -> Array:
    """Cosine and sine of the position that each pair turns by."""
    chosen = positions.reshape(count, -1)[axes].T
    angles = chosen.astype(np.float32) * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1) * np.float32(magnitude)


@twin
def rope(x: Array, table: Array, *, interleaved: bool = False) -> Array:
    """Rotate pairs of values of each head."""
    pairs = table.shape[1]
    cosine, sine = table[:, None, :, 0], table[:, None, :, 1]
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    y = x.copy()
    y[..., first] = x[..., first] * cosine - x[..., second] * sine
    y[..., second] = x[..., first] * sine + x[..., second] * cosine
    return y
