"""Blocks of 32 values with a scale, and a minimum: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0; and Q1_0 and Q2_0.

Without importances values are rounded plainly, as devices round them too; with importances the
scale is searched for.
"""

from __future__ import annotations

import numpy as np

from wgpu_backend.files.quantize.blocks import (
    Bytes,
    error_weights,
    f16_bytes,
    in_blocks,
    in_groups,
    joined,
    nibbles,
    pairs,
)
from wgpu_backend.files.quantize.search import (
    Floats,
    affine,
    half_away,
    lowest,
    peak,
    reciprocal,
    symmetric,
    total,
)


def q4_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """f16 scale, 32 quants of 4 bits: ``scale · (quant - 8)``."""
    scale, quants = _symmetric(values, importance, mean_square, 8)
    return np.hstack([scale, pairs(quants, 32)])


def q5_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """f16 scale, the fifth bits of 32 quants, their four lower ones: ``scale · (quant - 16)``."""
    scale, quants = _symmetric(values, importance, mean_square, 16)
    return np.hstack([scale, _fifth_bits(quants), pairs(nibbles(quants), 32)])


def q4_1(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """f16 scale and minimum, 32 quants of 4 bits: ``scale · quant + minimum``."""
    scale, low, quants = _affine(values, importance, mean_square, 15)
    return np.hstack([scale, low, pairs(quants, 32)])


def q5_1(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """f16 scale and minimum, 32 quants of 5 bits, the fifth ones first."""
    scale, low, quants = _affine(values, importance, mean_square, 31)
    return np.hstack([scale, low, _fifth_bits(quants), pairs(nibbles(quants), 32)])


def q8_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """f16 scale, 32 quants of i8; importances change nothing."""
    scale = np.abs(values).max(axis=1) / np.float32(127)
    rounded = half_away(values * reciprocal(scale)[:, None])
    quants = np.fmin(np.fmax(rounded, -127), 127).astype(np.int8)
    return np.hstack([f16_bytes(scale), quants.view(np.uint8)])


def q1_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """f16 mean magnitude of 128 values, and their signs, 1 where the value is not negative."""
    scale = total(np.abs(in_groups(values, 128))) / np.float32(128)
    return np.hstack([f16_bytes(scale), np.packbits(values >= 0, axis=1, bitorder="little")])


def q2_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """f16 scale, the largest magnitude of 64 values, and two bits a value, the first lowest.

    ``scale · (code - 1)``, so that code 3 is twice the scale, which no value here becomes.
    """
    scale = np.abs(values).max(axis=1)
    rounded = half_away(values * reciprocal(scale)[:, None]) + 1
    codes = np.fmin(np.fmax(rounded, 0), 3).astype(np.uint8).reshape(len(values), 16, 4)
    return np.hstack([f16_bytes(scale), joined(2, *(codes[:, :, i] for i in range(4)))])


def _symmetric(
    values: Floats, importance: Floats | None, mean_square: Floats | None, steps: int
) -> tuple[Bytes, Bytes]:
    if importance is not None and mean_square is not None:
        weights = error_weights(importance, values, mean_square)
        scale, quants = symmetric(in_groups(values, 32), in_groups(weights, 32), steps)
        return f16_bytes(scale), in_blocks(quants, len(values))
    scale = peak(values.T) / np.float32(-steps)
    # The value of largest magnitude is -steps; one as large of the other sign is cut off.
    raised = values * reciprocal(scale)[:, None] + np.float32(steps + 0.5)
    return f16_bytes(scale), _cut(raised, 2 * steps - 1)


def _affine(
    values: Floats, importance: Floats | None, mean_square: Floats | None, top: int
) -> tuple[Bytes, Bytes, Bytes]:
    if importance is not None and mean_square is not None:
        weights = error_weights(importance, values, mean_square)
        x, w = in_groups(values, 32), in_groups(weights, 32)
        scale, minimum, quants = affine(x, w, top, 36, -0.9, 0.05)
        return f16_bytes(scale), f16_bytes(-minimum), in_blocks(quants, len(values))
    low = lowest(values.T)
    # Adding 0 takes the sign off 0, which a block of 0 and -0 would have.
    scale = (values.max(axis=1) - low + np.float32(0)) / np.float32(top)
    raised = (values - low[:, None]) * reciprocal(scale)[:, None] + np.float32(0.5)
    return f16_bytes(scale), f16_bytes(low), _cut(raised, top)


def _cut(raised: Floats, top: int) -> Bytes:
    return np.fmin(np.fmax(np.trunc(raised), 0), np.float32(top)).astype(np.uint8)


def _fifth_bits(quants: Bytes) -> Bytes:
    return np.packbits(quants > 15, axis=1, bitorder="little")
