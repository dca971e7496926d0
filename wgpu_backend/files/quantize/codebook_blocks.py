"""Formats whose quants are places in a table of 16 numbers: IQ4_NL, IQ4_XS, MXFP4."""

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
    squares,
)
from wgpu_backend.files.quantize.search import Floats, clipped, peak, reciprocal, total

_NOTHING = np.float32(1e-15)
_NUMBERS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
# Halves between neighbours are multiples of 0.5, so what is nearest follows from floor(2 · value).
_CELLS = np.arange(-254, 228, dtype=np.float32)
_NEAREST = np.searchsorted(_NUMBERS[1:] + _NUMBERS[:-1], _CELLS, side="right").astype(np.uint8)
_NEAREST_NUMBER = _NUMBERS[_NEAREST]
# Twice the midpoints between magnitudes 0, 1, 2, 3, 4, 6, 8 and 12; a tie goes to the smaller one.
_FP4_CELLS = np.searchsorted([1, 3, 5, 7, 10, 14, 20], np.arange(33), side="left").astype(np.uint8)


def iq4_nl(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """f16 scale, 32 places in the table."""
    x = in_groups(values, 32)
    scale = _search(x, _weights(values, importance))
    quants = _NEAREST[_cells(reciprocal(scale) * x)]
    return np.hstack([f16_bytes(scale), pairs(in_blocks(quants, len(values)), 32)])


def iq4_xs(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """f16 scale, upper two and lower four bits of eight scales, 256 places in the table."""
    x, count = in_groups(values, 32), len(values)
    scales = _search(x, _weights(values, importance)).reshape(8, count)
    scale = peak(scales) / np.float32(-32)
    stored = clipped(reciprocal(scale) * scales, -32, 31)
    quants = _NEAREST[_cells(reciprocal((scale * stored).reshape(-1)) * x)]
    bits = (stored.T + 32).astype(np.uint8)
    parts = (bits >> np.uint8(4)).reshape(count, 2, 4)
    upper = joined(2, *(parts[..., i] for i in range(4)))
    lower = joined(4, nibbles(bits[:, ::2]), nibbles(bits[:, 1::2]))
    return np.hstack([f16_bytes(scale), upper, lower, pairs(in_blocks(quants, count), 32)])


def mxfp4(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """A power of two, and 32 floats of 4 bits; importances change nothing."""
    largest = np.abs(values).max(axis=1)
    exponent = np.floor(np.log2(largest)) + np.float32(125)
    exponent = np.where(largest > 0, np.fmax(exponent, 0), 0).astype(np.uint8)
    # Magnitudes of the table and cells are whole numbers, so values are scaled to twice as much.
    scaled = np.ldexp(np.abs(values), 129 - exponent.astype(np.int32)[:, None])
    cells = np.fmin(np.ceil(scaled), 32).astype(np.intp)
    quants = _FP4_CELLS[cells]
    quants |= ((values < 0) & (quants > 0)).astype(np.uint8) << 3
    return np.hstack([exponent[:, None], pairs(quants, 32)])


def _weights(values: Floats, importance: Floats | None) -> Floats:
    if importance is None:
        x = in_groups(values, 32)
        return x * x
    mean_square = squares(values) * np.float32(2 / values.shape[1])
    return in_groups(error_weights(importance, values, mean_square), 32)


def _cells(values: Floats) -> np.ndarray:
    """Places in the tables of cells; those of values out of range are the first or the last."""
    cells = np.floor(2 * values)
    np.fmin(np.fmax(cells, _CELLS[0], out=cells), _CELLS[-1], out=cells)
    return (cells - _CELLS[0]).astype(np.intp)


def _search(x: Floats, weights: Floats) -> Floats:
    """Scale of each group with the least weighted error among 16."""
    top, weighted = peak(x), weights * x
    along, square = _products(1 / (-top / _NUMBERS[0]), x, weighted, weights)
    scale = np.where(square > 0, along / square, np.float32(0))
    best = scale * along
    for step in range(-7, 8):
        along, square = _products((np.float32(step) + _NUMBERS[0]) / top, x, weighted, weights)
        better = (square > 0) & (along * along > best * square)
        np.copyto(scale, along / square, where=better)
        np.copyto(best, scale * along, where=better)
    return np.where(np.abs(top) < _NOTHING, np.float32(0), scale)


def _products(
    inverse: Floats, x: Floats, weighted: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    numbers = _NEAREST_NUMBER[_cells(inverse * x)]
    product = weights * numbers
    return total(product * x), total(product * numbers)
