"""NumPy twins of `wgpu_backend.ops.matmul`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu import activation as activations
from wgpu_backend.cpu.twin import Array, twin


@twin
def mulmat(weight: Array, x: Array) -> Array:
    """Return ``x @ weight.T``, batches of `weight` repeated to those of `x`."""
    batch = weight.shape[:-2]
    for axis, wanted in zip(range(-3, -3 - len(batch), -1), reversed(x.shape[:-2]), strict=False):
        weight = np.repeat(weight, wanted // weight.shape[axis], axis=axis)
    return np.matmul(x, np.swapaxes(weight, -1, -2)).reshape(*x.shape[:-1], weight.shape[-2])


@twin
def mulmat_full_prec(weight: Array, x: Array) -> Array:
    """`mulmat`: sums are as precise here as anywhere."""
    return mulmat(weight, x)


@twin
def mulmat_add(weight: Array, x: Array, addend: Array) -> Array:
    """Return ``x @ weight.T + addend``."""
    return mulmat(weight, x) + addend


@twin
def mulmat_gated(weight: Array, x: Array, *, activation: str) -> Array:
    """Gate and projection of one weight, joined."""
    gate, up = np.split(mulmat(weight, x), 2, axis=-1)
    return getattr(activations, activation)(gate) * up
