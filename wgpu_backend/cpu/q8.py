"""NumPy twins of `wgpu_backend.ops.q8`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu import activation as activations
from wgpu_backend.cpu.twin import Array, twin

_SMALLEST, _INFINITY = np.uint32(0x0D800000), np.uint32(0x7F800000)


@twin
def q8_activations(x: Array) -> Array:
    """Round groups of 32 values to eight bits, with their scale and sums."""
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    # By their bits, so that a NaN is the largest magnitude.
    largest = np.abs(groups).view(np.uint32).max(axis=-1, keepdims=True)
    plain = (largest >= _SMALLEST) & (largest < _INFINITY)
    magnitude = np.where(plain, largest, np.float32(1).view(np.uint32)).view(np.float32)
    scale = np.where(plain, magnitude / np.float32(127), np.float32(0))
    scaled = np.where(plain, groups, np.float32(0)) * (np.float32(127) / magnitude)
    quants = np.rint(scaled).astype(np.int8)
    halves = quants.reshape(*quants.shape[:-1], 2, 16).sum(axis=-1, dtype=np.int32)
    sums = np.concatenate([halves.sum(axis=-1, keepdims=True), halves], axis=-1)
    given = np.where(largest >= _INFINITY, np.float32(np.nan), scale)
    tail = np.concatenate([given, sums.astype(np.float32) * scale], axis=-1)
    return np.concatenate([quants.view(np.uint32), tail.view(np.uint32)], axis=-1)


def values_of(x: Array) -> Array:
    """What the groups stand for, (..., k)."""
    words = np.ascontiguousarray(x)
    quants = np.ascontiguousarray(words[..., :8]).view(np.int8).astype(np.float32)
    scale = np.ascontiguousarray(words[..., 8:9]).view(np.float32)
    return (quants * scale).reshape(*x.shape[:-2], -1)


@twin
def mulmat_q8(weight: Array, x: Array) -> Array:
    """Product of rounded rows with weights."""
    return np.matmul(values_of(x), weight.T)


@twin
def mulmat_q8_add(weight: Array, x: Array, addend: Array) -> Array:
    """`mulmat_q8` and a sum."""
    return mulmat_q8(weight, x) + addend


@twin
def mulmat_q8_gated(weight: Array, x: Array, *, activation: str) -> Array:
    """Gate and projection of one weight, joined."""
    gate, up = np.split(mulmat_q8(weight, x), 2, axis=-1)
    return getattr(activations, activation)(gate) * up
