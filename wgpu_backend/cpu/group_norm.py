"""NumPy twins of `wgpu_backend.ops.reduce.group_norm`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def channel_moments(x: Array, *, part: int) -> Array:
    """Mean and sum of squared distances of each channel, part by part."""
    batch, positions, channels = x.shape
    found = np.zeros((batch, -(-positions // part), channels, 2), np.float32)
    for i, start in enumerate(range(0, positions, part)):
        values = x[:, start : start + part].astype(np.float32)
        mean = values.mean(axis=1)
        found[:, i, :, 0] = mean
        found[:, i, :, 1] = ((values - mean[:, None]) ** 2).sum(axis=1)
    return found


@twin
def group_moments(moments: Array, *, groups: int, positions: int, part: int, eps: float) -> Array:
    """Moments of all parts of the channels of a group as one."""
    batch, parts, channels, _ = moments.shape
    counts = np.array([min(part, positions - i * part) for i in range(parts)], np.float32)
    shape = (batch, parts, groups, channels // groups)
    means, squares = (moments[..., i].reshape(shape) for i in (0, 1))
    weights, count = counts[:, None, None], np.float32(positions * (channels // groups))
    mean = (means * weights).sum(axis=(1, 3)) / count
    apart = means - mean[:, None, :, None]
    variance = (squares + weights * apart**2).sum(axis=(1, 3)) / count
    return np.stack([mean, 1 / np.sqrt(variance + np.float32(eps))], axis=-1)


@twin
def group_normed(
    x: Array,
    moments: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    silu: bool = False,
) -> Array:
    """Shift and scale each channel by the moments of its group."""
    ones = (1,) * (x.ndim - 2)
    of_channels = np.repeat(moments, x.shape[-1] // moments.shape[1], axis=1)
    mean, inverse = (of_channels[..., i].reshape(len(x), *ones, x.shape[-1]) for i in (0, 1))
    y = (x - mean) * inverse
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y / (1 + np.exp(-y)) if silu else y
