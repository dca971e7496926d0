"""NumPy twins of `wgpu_backend.ops.conv.timesteps`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def sinusoids(
    t: Array, frequencies: Array, *, dim: int, cosine_first: bool = False, scale: float = 1.0
) -> Array:
    """Sines and cosines of angles in f32, the functions in f64."""
    angles = t[:, None].astype(np.float32) * frequencies[: dim // 2] * np.float32(scale)
    parts = [np.sin(angles.astype(np.float64)), np.cos(angles.astype(np.float64))]
    parts = parts[::-1] if cosine_first else parts
    return np.concatenate([*parts, np.zeros((len(t), dim % 2))], axis=1)
