"""K-quants: blocks of 256 values in groups of 16 or 32, whose scales are quantised as well."""

from __future__ import annotations

import numpy as np

from wgpu_backend.files.quantize.blocks import (
    Bytes,
    bit_planes,
    bits2,
    error_weights,
    f16_bytes,
    in_blocks,
    in_groups,
    nibbles,
    pack_bits,
    pairs,
    read_f16,
    squares,
)
from wgpu_backend.files.quantize.search import (
    Floats,
    affine,
    descend_symmetric,
    peak,
    positive,
    round_clip,
    symmetric,
    total,
)

_NOTHING = np.float32(1e-15)


def q2_k(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to 16 4-bit scales and minima, 256 quants of 2 bits, and f16 scale and minimum."""
    x = in_groups(values, 16)
    if importance is None:
        search = affine(x, np.abs(x), 3, 15, -0.5, 0.1, absolute=True)
        found = _largest_as(15, search[0], search[1], len(values))
    else:
        weights = _weights(values, importance, 16, 1)
        search = affine(x, weights, 3, 36, -0.9, 0.05)
        found = _search_scales(15, search[0], search[1], weights, len(values))
    scale, low, scales, lows = found
    quants = _requantize(x, search[2], 3, scale, low, scales, lows)
    return np.hstack(
        [pack_bits(4, scales, lows).T, bits2(in_blocks(quants, len(values))), scale, low]
    )


def q3_k(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to third and lower two bits of 256 quants, 16 6-bit scales, and an f16 scale."""
    x, count = in_groups(values, 16), len(values)
    if importance is None:
        scales, quants = descend_symmetric(x, 4)
        scale, stored = _signed_scales(scales.reshape(16, count), 32, 31)
    else:
        weights = _weights(values, importance, 16, 2)
        scales, quants = symmetric(x, weights, 4)
        sums = total(weights).reshape(16, count)
        found, stored = symmetric(scales.reshape(16, count), sums, 32)
        scale = f16_bytes(found)
        stored -= 32
    quants = in_blocks(_requantize_signed(x, quants, 4, scale, stored), count)
    low_bits = bits2(quants & np.uint8(3))
    scales = _scales_q3((stored.T + 32).astype(np.uint8))
    return np.hstack([bit_planes(quants > 3), low_bits, scales, scale])


def q4_k(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to f16 scale and minimum, eight of each in 6 bits, and 256 quants of 4 bits."""
    head, quants = _quantize_groups(values, importance, 15, 20, -1.0)
    return np.hstack([head, pairs(quants, 64)])


def q5_k(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise as Q4_K, with the fifth bits of the quants before the lower four."""
    head, quants = _quantize_groups(values, importance, 31, 15, -0.5)
    return np.hstack([head, bit_planes(quants > 15), pairs(nibbles(quants), 64)])


def q6_k(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to lower four and upper two bits of 256 quants, 16 i8 scales, and an f16 scale."""
    x, count = in_groups(values, 16), len(values)
    weights = x * x if importance is None else in_groups(importance, 16)
    scales, quants = symmetric(x, weights, 32)
    scale, stored = _signed_scales(scales.reshape(16, count), 128, 127)
    quants = in_blocks(_requantize_signed(x, quants, 32, scale, stored), count)
    zero = np.abs(scales.reshape(16, count)).max(axis=0) < _NOTHING
    quants[zero] = 0
    low = nibbles(quants).reshape(count, 2, 2, 2, 32)
    low_bits = pack_bits(4, low[:, :, 0], low[:, :, 1]).reshape(count, 128)
    scales = stored.T.astype(np.int8).view(np.uint8)
    return np.hstack([low_bits, bits2(quants >> np.uint8(4)), scales, scale])


def _quantize_groups(
    values: Floats, importance: Floats | None, top: int, tries: int, first: float
) -> tuple[Bytes, Bytes]:
    """Return scales and minima in 16 bytes, and the quants, (n, 256), for groups of 32."""
    x = in_groups(values, 32)
    if importance is None:
        weights = np.sqrt(total(x * x) / np.float32(32)) + np.abs(x)
        search = affine(x, weights, top, tries, first, 0.1)
        found = _largest_as(63, search[0], search[1], len(values))
    else:
        weights = _weights(values, importance, 32, 2)
        search = affine(x, weights, top, 36, -0.9, 0.05)
        found = _search_scales(63, search[0], search[1], weights, len(values))
    scale, low, scales, lows = found
    quants = _requantize(x, search[2], top, scale, low, scales, lows)
    head = np.hstack([scale, low, _scales_q4(scales.T, lows.T)])
    return head, in_blocks(quants, len(values))


def _weights(values: Floats, importance: Floats, size: int, factor: int) -> Floats:
    """Return the weights of errors, by the block's mean square times `factor`, as columns."""
    mean_square = np.float32(factor) * squares(values) / np.float32(256)
    return in_groups(error_weights(importance, values, mean_square), size)


def _largest_as(
    top: int, scales: Floats, lows: Floats, count: int
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Return f16 scale and minimum (n, 2), and those of groups (groups, n), at most `top`."""
    scale, stored = _share(top, scales.reshape(-1, count))
    low, stored_low = _share(top, lows.reshape(-1, count))
    return scale, low, stored, stored_low


def _share(top: int, scales: Floats) -> tuple[Bytes, Bytes]:
    largest = np.fmax(scales.max(axis=0), np.float32(0))
    inverse = np.where(largest > 0, np.float32(top) / largest, np.float32(0))
    return f16_bytes(largest / np.float32(top)), round_clip(inverse * scales, 0, top).astype(
        np.uint8
    )


def _search_scales(
    top: int, scales: Floats, lows: Floats, weights: Floats, count: int
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Return the same as `_largest_as`, with the block's scales of least weighted error."""
    sums = total(weights).reshape(-1, count)
    scale, stored = positive(scales.reshape(-1, count), sums, top)
    low, stored_low = positive(lows.reshape(-1, count), sums, top)
    return f16_bytes(scale), f16_bytes(low), stored.astype(np.uint8), stored_low.astype(np.uint8)


def _signed_scales(scales: Floats, low: int, high: int) -> tuple[Bytes, Floats]:
    """Return an f16 scale (n, 2), and group scales in it (groups, n), the largest ``-low``."""
    top = peak(scales)
    inverse = np.float32(-low) / top
    some = np.abs(top) > (0 if high == 31 else _NOTHING)
    scale = f16_bytes(np.where(some, 1 / inverse, np.float32(0)))
    stored = round_clip(inverse * scales, -low, high)
    return scale, np.where(some, stored, np.float32(-low if high == 31 else 0))


def _requantize(
    x: Floats, quants: Floats, top: int, scale: Bytes, low: Bytes, scales: Bytes, lows: Bytes
) -> Floats:
    """Requantise under the stored scales and minima, except where the scale is 0."""
    d: Floats = (read_f16(scale) * scales.astype(np.float32)).reshape(-1)
    m: Floats = (read_f16(low) * lows.astype(np.float32)).reshape(-1)
    return np.where(d != 0, round_clip((x + m) / d, 0, top), quants)


def _requantize_signed(
    x: Floats, quants: Floats, steps: int, scale: Bytes, stored: Floats
) -> Floats:
    d: Floats = (read_f16(scale) * stored).reshape(-1)
    again = round_clip(x / d, -steps, steps - 1) + np.float32(steps)
    return np.where(d != 0, again, quants)


def _scales_q4(scales: Bytes, lows: Bytes) -> Bytes:
    """Pack eight scales and eight minima of six bits into 12 bytes."""
    first, second = (
        pack_bits(6, part[:, :4], part[:, 4:] >> np.uint8(4)) for part in (scales, lows)
    )
    return np.hstack([first, second, pack_bits(4, nibbles(scales[:, 4:]), nibbles(lows[:, 4:]))])


def _scales_q3(scales: Bytes) -> Bytes:
    """Pack 16 scales of six bits into 12 bytes."""
    upper = (scales >> np.uint8(4)).reshape(-1, 4, 4)
    high = pack_bits(2, *(upper[:, i] for i in range(4)))
    return np.hstack([pack_bits(4, nibbles(scales[:, :8]), nibbles(scales[:, 8:])), high])
