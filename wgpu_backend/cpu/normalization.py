"""NumPy twins of `wgpu_backend.ops.reduce.norm`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def rms_norm(x: Array, weight: Array | None = None, *, eps: float) -> Array:
    """Scale rows to unit mean square."""
    if not x.size:
        return x
    normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return normed if weight is None else normed * weight


@twin
def rms_norm_add(x: Array, addend: Array, weight: Array | None = None, *, eps: float) -> Array:
    """`rms_norm`, plus another tensor."""
    return rms_norm(x, weight, eps=eps) + addend


@twin
def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float
) -> Array:
    """Shift and scale rows to zero mean and unit variance."""
    if not x.size:
        return x
    centred = x - np.mean(x, axis=-1, keepdims=True)
    normed = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + np.float32(eps))
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


@twin
def softmax(x: Array) -> Array:
    """Exponentials of rows over their sums."""
    e = np.exp(x - np.max(x, axis=-1, keepdims=True, initial=-np.inf))
    return e / np.sum(e, axis=-1, keepdims=True)
