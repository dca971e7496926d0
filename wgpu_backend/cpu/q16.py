"""NumPy twins of rounding to sixteen bits by groups, and what groups stand for."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.f16_groups import norm_factor as norm_factor
from wgpu_backend.cpu.twin import Array, twin

_SMALLEST, _INFINITY = np.uint32(0x0D800000), np.uint32(0x7F800000)
_STEPS = np.float32(32639)


@twin
def q16_activations(x: Array) -> Array:
    """Round groups of 32 values to sixteen bits, with their scale, sums and squares."""
    return _in_planes(_rounded(_in_groups(x)))


@twin
def q16_weighted(x: Array, weight: Array) -> Array:
    """`q16_activations` of weighted rows, with the squares of the rows alone."""
    groups = _rounded(_in_groups(x * weight))
    groups[..., 19:] = _squares(_in_groups(x)).view(np.uint32)
    return _in_planes(groups)


def _in_groups(x: Array) -> Array:
    return x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)


def _squares(groups: Array) -> Array:
    return np.sum(groups * groups, axis=-1, keepdims=True)


def _rounded(groups: Array) -> Array:
    """Groups of (..., 20) words."""
    # By their bits, so that a NaN is the largest magnitude.
    largest = np.abs(groups).view(np.uint32).max(axis=-1, keepdims=True)
    plain = (largest >= _SMALLEST) & (largest < _INFINITY)
    magnitude = np.where(plain, largest, np.float32(1).view(np.uint32)).view(np.float32)
    scale = np.where(plain, magnitude * np.float32(1 / 32639), np.float32(0))
    quants = np.rint(np.where(plain, groups, np.float32(0)) * (_STEPS / magnitude)).astype(np.int32)
    sums = [quants[..., :count].sum(axis=-1, keepdims=True, dtype=np.int32) for count in (32, 16)]
    given = np.where(largest >= _INFINITY, np.float32(np.nan), scale)
    parts = [given, *(s.astype(np.float32) * scale for s in sums), _squares(groups)]
    upper = (quants + 128) >> 8
    words = [each.astype(np.int8).view(np.uint32) for each in (upper, quants - 256 * upper)]
    return np.concatenate([*words, np.concatenate(parts, axis=-1).view(np.uint32)], axis=-1)


def _in_planes(groups: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(groups.reshape(*groups.shape[:-1], 5, 4), -2, 0))


def values_of(x: Array) -> Array:
    """What the groups stand for, (..., k)."""
    words = np.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], 20)
    upper, lower = (
        np.ascontiguousarray(words[..., at : at + 8]).view(np.int8).astype(np.float32)
        for at in (0, 8)
    )
    scale = np.ascontiguousarray(words[..., 16:17]).view(np.float32)
    return ((256 * upper + lower) * scale).reshape(*words.shape[:-2], -1)
