"""NumPy twins of `wgpu_backend.ops.linear.rounding_rules`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.normalization import rms_norm
from wgpu_backend.cpu.q8 import in_planes, q8_activations, values_of
from wgpu_backend.cpu.twin import Array, twin


@twin
def rms_norm_pair(
    x: Array, weight: Array | None = None, *, eps: float, planar: bool = False
) -> Array:
    """Norm, then splitting."""
    return q8_pair(rms_norm(x, weight, eps=eps), planar=planar)


@twin
def q8_pair(x: Array, *, planar: bool = False) -> Array:
    """Rounded values, and the rounded rest."""
    first = q8_activations(x)
    both = np.stack([first, q8_activations(x - values_of(first))], axis=-3)
    return in_planes(both.reshape(*x.shape[:-1], -1, 12)) if planar else both
