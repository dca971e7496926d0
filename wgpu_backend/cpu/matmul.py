"""NumPy twins of `wgpu_backend.ops.matmul`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu import activation as activations
from wgpu_backend.cpu.normed import norm_weighted, normed
from wgpu_backend.cpu.twin import Array, twin


@twin
def mulmat(weight: Array, x: Array, *, eps: float | None = None) -> Array:
    """Return ``x @ weight.T``, batches of `weight` repeated to those of `x`."""
    batch, x = weight.shape[:-2], normed(x, weight.shape[-1], eps)
    for axis, wanted in zip(range(-3, -3 - len(batch), -1), reversed(x.shape[:-2]), strict=False):
        weight = np.repeat(weight, wanted // weight.shape[axis], axis=axis)
    return np.matmul(x, np.swapaxes(weight, -1, -2)).reshape(*x.shape[:-1], weight.shape[-2])


@twin
def mulmat_full_prec(weight: Array, x: Array, *, eps: float | None = None) -> Array:
    """`mulmat`: sums are as precise here as anywhere."""
    return mulmat(weight, x, eps=eps)


@twin
def mulmat_add(weight: Array, x: Array, addend: Array, *, eps: float | None = None) -> Array:
    """Return ``x @ weight.T + addend``."""
    return mulmat(weight, x, eps=eps) + addend


@twin
def mulmat_add_weighted(
    weight: Array, x: Array, addend: Array, scale: Array, total: Array, *, eps: float | None = None
) -> Array:
    """`mulmat_add` into `total`, and that weighted, with its squares."""
    total[...] = mulmat_add(weight, x, addend, eps=eps)
    return norm_weighted(total, scale)


@twin
def mulmat_gated(weight: Array, x: Array, *, activation: str, eps: float | None = None) -> Array:
    """Gate and projection of one weight, joined."""
    gate, up = np.split(mulmat(weight, x, eps=eps), 2, axis=-1)
    return getattr(activations, activation)(gate) * up


@twin
def mulmat_f16(
    weight: Array, x: Array, addend: Array | None = None, *, activation: str | None = None
) -> Array:
    """`mulmat` and what follows it, which the device rounds a little."""
    if activation is not None:
        return mulmat_gated(weight, x, activation=activation)
    return mulmat(weight, x) + (0 if addend is None else addend)
