"""The block formats, and then K-quants, whose blocks have a scale for each of several groups.

Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 have 32 values per block, Q1_0 and Q2_0 more. Without importances
values are rounded directly, as on devices; with importances a scale is searched for. TQ1_0 and
TQ2_0 are ternary. IQ4_NL, IQ4_XS and MXFP4 store indices of a table of 16 numbers.
"""

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
    half_away,
    lowest,
    peak,
    positive,
    reciprocal,
    round_clip,
    symmetric,
    total,
)


def q4_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to an f16 scale and 32 quants of 4 bits: ``scale · (quant - 8)``."""
    scale, quants = _symmetric(values, importance, mean_square, 8)
    return np.hstack([scale, pairs(quants, 32)])


def q5_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to an f16 scale, the fifth bits of 32 quants, and their lower four."""
    scale, quants = _symmetric(values, importance, mean_square, 16)
    return np.hstack([scale, _fifth_bits(quants), pairs(nibbles(quants), 32)])


def q4_1(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to f16 scale and minimum, and 32 quants of 4 bits: ``scale · quant + minimum``."""
    scale, low, quants = _affine(values, importance, mean_square, 15)
    return np.hstack([scale, low, pairs(quants, 32)])


def q5_1(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to f16 scale and minimum, and 32 quants of 5 bits, the fifth ones first."""
    scale, low, quants = _affine(values, importance, mean_square, 31)
    return np.hstack([scale, low, _fifth_bits(quants), pairs(nibbles(quants), 32)])


def q8_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to an f16 scale and 32 quants of i8, ignoring importances."""
    # As in ggml, -128 is not used, so that every quant has its negative.
    scale = np.abs(values).max(axis=1) / np.float32(127)
    rounded = half_away(values * reciprocal(scale)[:, None])
    quants = np.fmin(np.fmax(rounded, -127), 127).astype(np.int8)
    return np.hstack([f16_bytes(scale), quants.view(np.uint8)])


def q1_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to the f16 mean magnitude of 128 values, and a bit for each that is not negative."""
    scale = total(np.abs(in_groups(values, 128))) / np.float32(128)
    return np.hstack([f16_bytes(scale), np.packbits(values >= 0, axis=1, bitorder="little")])


def q2_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to an f16 scale, the largest of 64 magnitudes, and two bits each, the first lowest.

    ``scale · (code - 1)``, so code 3 is twice the scale, which no value here becomes.
    """
    scale = np.abs(values).max(axis=1)
    rounded = half_away(values * reciprocal(scale)[:, None]) + 1
    codes = np.fmin(np.fmax(rounded, 0), 3).astype(np.uint8).reshape(len(values), 16, 4)
    return np.hstack([f16_bytes(scale), pack_bits(2, *(codes[:, :, i] for i in range(4)))])


def _symmetric(
    values: Floats, importance: Floats | None, mean_square: Floats | None, steps: int
) -> tuple[Bytes, Bytes]:
    if importance is not None and mean_square is not None:
        weights = error_weights(importance, values, mean_square)
        scale, quants = symmetric(in_groups(values, 32), in_groups(weights, 32), steps)
        return f16_bytes(scale), in_blocks(quants, len(values))
    scale = peak(values.T) / np.float32(-steps)
    # The value of largest magnitude becomes -steps; its negative is clipped.
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
    # Adding 0 removes the sign of -0, which a block of 0 and -0 would have.
    scale = (values.max(axis=1) - low + np.float32(0)) / np.float32(top)
    raised = (values - low[:, None]) * reciprocal(scale)[:, None] + np.float32(0.5)
    return f16_bytes(scale), f16_bytes(low), _cut(raised, top)


def _cut(raised: Floats, top: int) -> Bytes:
    return np.fmin(np.fmax(np.trunc(raised), 0), np.float32(top)).astype(np.uint8)


def _fifth_bits(quants: Bytes) -> Bytes:
    return np.packbits(quants > 15, axis=1, bitorder="little")


def tq1_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to five values per byte, as a fraction of 256 in base 3; four for the last 16."""
    scale, trits = _trits(values)
    first = trits[:, :160].reshape(-1, 5, 32)
    second = trits[:, 160:240].reshape(-1, 5, 16)
    last = np.concatenate(
        [trits[:, 240:].reshape(-1, 4, 4), np.zeros((len(values), 1, 4), "u2")], 1
    )
    return np.hstack([*(_base_3(part) for part in (first, second, last)), f16_bytes(scale)])


def tq2_0(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to two bits per value."""
    scale, trits = _trits(values)
    return np.hstack([bits2(trits.astype(np.uint8)), f16_bytes(scale)])


def _trits(values: Floats) -> tuple[Floats, np.ndarray]:
    """Return scale (n,), and values rounded to 0, 1 and 2, (n, 256), u16."""
    scale = np.abs(values).max(axis=1)
    rounded = half_away(values * reciprocal(scale)[:, None])
    return scale, (np.fmin(np.fmax(rounded, -1), 1) + 1).astype(np.uint16)


def _base_3(trits: np.ndarray) -> Bytes:
    digits = trits * np.array([81, 27, 9, 3, 1], np.uint16)[:, None]
    # Rounded up, so that decoding by repeated multiplication with 3 finds each digit.
    return ((digits.sum(axis=1, dtype=np.uint16) * np.uint16(256) + 242) // 243).astype(np.uint8)


_NOTHING = np.float32(1e-15)
# ggml's `kvalues_iq4nl`, denser around zero, where most weights are.
_NUMBERS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
# Midpoints between table entries are multiples of 0.5, so floor(2 · value) determines the nearest.
_CELLS = np.arange(-254, 228, dtype=np.float32)
_NEAREST = np.searchsorted(_NUMBERS[1:] + _NUMBERS[:-1], _CELLS, side="right").astype(np.uint8)
_NEAREST_NUMBER = _NUMBERS[_NEAREST]
# Twice the midpoints between magnitudes 0, 1, 2, 3, 4, 6, 8 and 12; a tie goes to the smaller one.
_FP4_CELLS = np.searchsorted([1, 3, 5, 7, 10, 14, 20], np.arange(33), side="left").astype(np.uint8)


def iq4_nl(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to an f16 scale and 32 indices."""
    x = in_groups(values, 32)
    scale = _search(x, _weights(values, importance))
    quants = _NEAREST[_cells(reciprocal(scale) * x)]
    return np.hstack([f16_bytes(scale), pairs(in_blocks(quants, len(values)), 32)])


def iq4_xs(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to an f16 scale, upper two and lower four bits of eight scales, and 256 indices."""
    x, count = in_groups(values, 32), len(values)
    scales = _search(x, _weights(values, importance)).reshape(8, count)
    scale = peak(scales) / np.float32(-32)
    stored = round_clip(reciprocal(scale) * scales, -32, 31)
    quants = _NEAREST[_cells(reciprocal((scale * stored).reshape(-1)) * x)]
    bits = (stored.T + 32).astype(np.uint8)
    parts = (bits >> np.uint8(4)).reshape(count, 2, 4)
    upper = pack_bits(2, *(parts[..., i] for i in range(4)))
    lower = pack_bits(4, nibbles(bits[:, ::2]), nibbles(bits[:, 1::2]))
    return np.hstack([f16_bytes(scale), upper, lower, pairs(in_blocks(quants, count), 32)])


def mxfp4(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to a power of two and 32 4-bit floats, ignoring importances."""
    largest = np.abs(values).max(axis=1)
    # E8M0 has a bias of 127; the largest FP4 number is 6 = 1.5 · 2², so the exponent is 2 less (OCP
    # Microscaling Formats 1.0, §6.3).
    exponent = np.floor(np.log2(largest)) + np.float32(125)
    exponent = np.where(largest > 0, np.fmax(exponent, 0), 0).astype(np.uint8)
    # Twice the value, so that magnitudes of the table and cells are whole numbers.
    scaled = np.ldexp(np.abs(values), 129 - exponent.astype(np.int32)[:, None])
    cells = np.fmin(np.ceil(scaled), 32).astype(np.intp)
    quants = _FP4_CELLS[cells]
    quants |= ((values < 0) & (quants > 0)).astype(np.uint8) << 3
    return np.hstack([exponent[:, None], pairs(quants, 32)])


def _weights(values: Floats, importance: Floats | None) -> Floats:
    if importance is None:
        x = in_groups(values, 32)
        return x * x
    # llama.cpp's `sigma2`, which is twice the mean of the squares.
    mean_square = squares(values) * np.float32(2 / values.shape[1])
    return in_groups(error_weights(importance, values, mean_square), 32)


def _cells(values: Floats) -> np.ndarray:
    """Return the indices of cells of width 1/2, clipped to the first and last cell."""
    cells = np.floor(2 * values)
    np.fmin(np.fmax(cells, _CELLS[0], out=cells), _CELLS[-1], out=cells)
    return (cells - _CELLS[0]).astype(np.intp)


def _search(x: Floats, weights: Floats) -> Floats:
    """Return the scale of each group with the least weighted error among 16."""
    top, weighted = peak(x), weights * x
    along, square = _products(1 / (-top / _NUMBERS[0]), x, weighted, weights)
    scale = np.where(square > 0, along / square, np.float32(0))
    best = scale * along
    # The scales that llama.cpp tries: up to seven steps to both sides.
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


# K-quants: blocks of 256 values in groups of 16 or 32, whose scales are quantised as well.


def q2_k(values: Floats, importance: Floats | None, mean_square: Floats | None) -> Bytes:
    """Quantise to 16 4-bit scales and minima, 256 quants of 2 bits, and f16 scale and minimum."""
    x = in_groups(values, 16)
    if importance is None:
        # As llama.cpp's `make_qkx2_quants` for this format, which compares absolute errors.
        search = affine(x, np.abs(x), 3, 15, -0.5, 0.1, absolute=True)
        found = _largest_as(15, search[0], search[1], len(values))
    else:
        weights = _weigh_groups(values, importance, 16, 1)
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
        weights = _weigh_groups(values, importance, 16, 2)
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
    # The number of trials and the first one are llama.cpp's for this format.
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
    # llama.cpp fills such a block with zero bytes.
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
        weights = _weigh_groups(values, importance, 32, 2)
        search = affine(x, weights, top, 36, -0.9, 0.05)
        found = _search_scales(63, search[0], search[1], weights, len(values))
    scale, low, scales, lows = found
    quants = _requantize(x, search[2], top, scale, low, scales, lows)
    head = np.hstack([scale, low, _scales_q4(scales.T, lows.T)])
    return head, in_blocks(quants, len(values))


def _weigh_groups(values: Floats, importance: Floats, size: int, factor: int) -> Floats:
    """Return the weights of errors, by the block's mean square times `factor`, as columns."""
    mean_square = np.float32(factor) * squares(values) / np.float32(256)
    return in_groups(error_weights(importance, values, mean_square), size)


def _largest_as(
    top: int, scales: Floats, lows: Floats, count: int
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Return f16 scale and minimum (n, 2), and group scales and minima (groups, n), 0 to `top`."""
    scale, stored = _share_scales(top, scales.reshape(-1, count))
    low, stored_low = _share_scales(top, lows.reshape(-1, count))
    return scale, low, stored, stored_low


def _share_scales(top: int, scales: Floats) -> tuple[Bytes, Bytes]:
    largest = np.fmax(scales.max(axis=0), np.float32(0))
    inverse = np.where(largest > 0, np.float32(top) / largest, np.float32(0))
    return f16_bytes(largest / np.float32(top)), round_clip(inverse * scales, 0, top).astype(
        np.uint8
    )


def _search_scales(
    top: int, scales: Floats, lows: Floats, weights: Floats, count: int
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Return what `_largest_as` does, but search the block's scales for least weighted error."""
    sums = total(weights).reshape(-1, count)
    scale, stored = positive(scales.reshape(-1, count), sums, top)
    low, stored_low = positive(lows.reshape(-1, count), sums, top)
    return f16_bytes(scale), f16_bytes(low), stored.astype(np.uint8), stored_low.astype(np.uint8)


def _signed_scales(scales: Floats, low: int, high: int) -> tuple[Bytes, Floats]:
    """Return an f16 scale (n, 2), and group scales (groups, n) from `-low` to `high` times it."""
    top = peak(scales)
    inverse = np.float32(-low) / top
    some = np.abs(top) > (0 if high == 31 else _NOTHING)
    scale = f16_bytes(np.where(some, 1 / inverse, np.float32(0)))
    stored = round_clip(inverse * scales, -low, high)
    # Q3_K stores scales plus 32: -32 makes the zero bytes that llama.cpp leaves there.
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
