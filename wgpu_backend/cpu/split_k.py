"""NumPy twins of `wgpu_backend.kernels.gpu.split_k`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu import activation as activations
from wgpu_backend.cpu.linear import linear
from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.linear.attributes import VALUES, Precision, Prologue
from wgpu_backend.ops.linear.normed import GROUP


@twin
def linear_splits(
    weight: Array,
    x: Array,
    *,
    part_groups: int,
    prologue: Prologue = VALUES,
    precision: Precision = "default",
) -> Array:
    """Products of a weight of which all but a part of each row is 0."""
    k, size = weight.shape[-1], part_groups * GROUP
    parts = [_part(weight, first, first + size) for first in range(0, k, size)]
    return np.stack([linear(part, x, prologue=prologue, precision=precision) for part in parts])


def _part(weight: Array, first: int, end: int) -> Array:
    part = np.zeros_like(weight)
    part[:, first:end] = weight[:, first:end]
    return part


@twin
def linear_merge(x: Array, addend: Array | None = None, *, activation: str | None = None) -> Array:
    """Sum over parts, and what comes behind it."""
    y = x.sum(axis=0)
    if activation is not None:
        gate, up = np.split(y, 2, axis=-1)
        y = getattr(activations, activation)(gate) * up
    return y if addend is None else y + addend
