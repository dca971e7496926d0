"""NumPy twins of `wgpu_backend.ops.linear.q8_rounding`, and what groups stand for."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin

_SMALLEST, _INFINITY = np.uint32(0x0D800000), np.uint32(0x7F800000)


@twin
def q8_activations(x: Array, *, planar: bool = False) -> Array:
    """Round groups of 32 values to eight bits, with their scale, sums and squares."""
    return in_planes(_rounded(x)) if planar else _rounded(x)


def in_planes(groups: Array) -> Array:
    """Groups of (..., 12) words as (3, ..., 4)."""
    return np.ascontiguousarray(np.moveaxis(groups.reshape(*groups.shape[:-1], 3, 4), -2, 0))


def out_of_planes(x: Array) -> Array:
    """Groups of (..., 12) words, which may lie in planes."""
    whole = x if x.shape[-1] == 12 else np.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], 12)
    return np.ascontiguousarray(whole)


def _rounded(x: Array) -> Array:
    groups = _in_groups(x)
    # By their bits, so that a NaN is the largest magnitude.
    largest = np.abs(groups).view(np.uint32).max(axis=-1, keepdims=True)
    plain = (largest >= _SMALLEST) & (largest < _INFINITY)
    magnitude = np.where(plain, largest, np.float32(1).view(np.uint32)).view(np.float32)
    scale = np.where(plain, magnitude * np.float32(1 / 127), np.float32(0))
    scaled = np.where(plain, groups, np.float32(0)) * (np.float32(127) / magnitude)
    quants = np.rint(scaled).astype(np.int8)
    sums = [quants[..., :count].sum(axis=-1, keepdims=True, dtype=np.int32) for count in (32, 16)]
    given = np.where(largest >= _INFINITY, np.float32(np.nan), scale)
    parts = [given, *(s.astype(np.float32) * scale for s in sums), _squares(groups)]
    tail = np.concatenate(parts, axis=-1)
    return np.concatenate([quants.view(np.uint32), tail.view(np.uint32)], axis=-1)


@twin
def q8_weighted(x: Array, weight: Array, *, planar: bool = False) -> Array:
    """`q8_activations` of weighted rows, with the squares of the rows alone."""
    groups = _rounded(x * weight)
    groups[..., 11:] = _squares(_in_groups(x)).view(np.uint32)
    return in_planes(groups) if planar else groups


def _squares(groups: Array) -> Array:
    return np.sum(groups * groups, axis=-1, keepdims=True)


def _in_groups(x: Array) -> Array:
    return x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)


def values_of(x: Array) -> Array:
    """What the groups stand for, (..., k)."""
    words = out_of_planes(x)
    quants = np.ascontiguousarray(words[..., :8]).view(np.int8).astype(np.float32)
    scale = np.ascontiguousarray(words[..., 8:9]).view(np.float32)
    return (quants * scale).reshape(*words.shape[:-2], -1)


def norm_factor(x: Array, eps: float | None) -> Array:
    """What a norm multiplies rows by, (..., 1)."""
    if eps is None:
        return np.float32(1).reshape(1)
    squares = np.ascontiguousarray(out_of_planes(x)[..., 11]).view(np.float32)
    squares = squares.sum(axis=-1, keepdims=True)
    return 1 / np.sqrt(squares / np.float32(32 * x.shape[-2]) + np.float32(eps))
