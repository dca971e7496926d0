"""NumPy twins of `wgpu_backend.ops.rounding`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.normalization import rms_norm
from wgpu_backend.cpu.q8 import q8_activations, values_of
from wgpu_backend.cpu.twin import Array, twin


@twin
def rms_norm_pair(x: Array, weight: Array | None = None, *, eps: float) -> Array:
    """Norm, then splitting."""
    return q8_pair(rms_norm(x, weight, eps=eps))


@twin
def q8_pair(x: Array) -> Array:
    """Rounded values, and the rounded rest."""
    first = q8_activations(x)
    return np.stack([first, q8_activations(x - values_of(first))], axis=-3)
