"""Rounding to f16: by groups of 32 values for few columns, by whole rows for many."""

from __future__ import annotations

from math import prod

import numpy as np

from wgpu_backend.dtypes import F16, Q4_0, Q4_1, Q4_K, Q6_K, U32, DType
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.linear.q8 import FORMATS
from wgpu_backend.ops.linear.q8_rounding import in_groups, sum_squares
from wgpu_backend.ops.reference import Array

# Words of a group: sixteen pairs, its scale, two sums, and its squares.
WORDS = 20
# Planes that these may be spread over, a vector of four each.
PLANES = 5
# Formats of weights that are multiplied with such groups.
WEIGHTS = (*FORMATS, F16)
# Formats whose bytes have the quants of two values.
NIBBLES = (Q4_0, Q4_1, Q4_K)
# Formats that share rows with these in mixes, and take them as they are.
BESIDE_NIBBLES = (Q6_K,)
# Values after those of a row: its exponent, and zeros up to 16 bytes.
ROW_TAIL = 8
# Columns are filled up to whole vectors of so many.
COLUMNS_ALIGNED = 8
# Biased exponents of the scales of groups.
_SMALLEST, _LARGEST = 27, 249
_INFINITY = np.uint32(0x7F800000)


def is_planar(dtype: DType) -> bool:
    """Return whether products with a weight format read planes, since lanes take whole groups."""
    return dtype != F16


def f16_spec(rows: Shape, groups: int, planar: bool) -> Spec:
    """Return the spec of rows in f16, see `f16_activations`."""
    if planar:
        return Spec.dense((PLANES, *rows, groups, WORDS // PLANES), U32)
    return Spec.dense((*rows, groups, WORDS), U32)


def f16_activations_reference(x: Array, *, planar: bool = False, nibbles: bool = False) -> Array:
    """Round groups of 32 values to f16, with their scale, sums and squares."""
    return _laid_out(_round(in_groups(x), nibbles), planar)


def f16_weighted_reference(
    x: Array, weight: Array, *, planar: bool = False, nibbles: bool = False
) -> Array:
    """Apply `f16_activations` to weighted rows, with the squares of the unweighted rows."""
    groups = _round(in_groups(x * weight), nibbles)
    # A norm's factor is of the rows before its weight.
    groups[..., 19:] = sum_squares(in_groups(x)).view(np.uint32)
    return _laid_out(groups, planar)


def _laid_out(groups: Array, planar: bool) -> Array:
    if not planar:
        return groups
    return np.ascontiguousarray(np.moveaxis(groups.reshape(*groups.shape[:-1], 5, 4), -2, 0))


def _round(groups: Array, nibbles: bool) -> Array:
    # By their bits, so that a NaN is the largest magnitude.
    largest = np.abs(groups).view(np.uint32).max(axis=-1, keepdims=True)
    plain = (largest >= np.uint32(_SMALLEST << 23)) & (largest < _INFINITY)
    exponent = np.clip((largest >> np.uint32(23)).astype(np.int32), _SMALLEST, _LARGEST) - 123
    scale = np.where(plain, np.ldexp(np.float32(1), exponent), np.float32(0))
    values = np.where(plain, groups, np.float32(0)) * np.ldexp(np.float32(1), -exponent)
    # Divided by a power of two so that values are below an eighth: sums of 32 products then stay
    # far below the largest f16.
    halves = values.astype(np.float16)
    halves = _for_nibbles(halves) if nibbles else halves
    # Sums are of the rounded values, as products see them: a minimum is multiplied by the sum.
    stood_for = _values(halves.astype(np.float32), nibbles)
    sums = [stood_for[..., :n].sum(axis=-1, keepdims=True) for n in (32, 16)]
    # A group with NaN or an infinity gives NaN.
    given = np.where(largest >= _INFINITY, np.float32(np.nan), scale)
    tail = np.concatenate([given, *(s * scale for s in sums), sum_squares(groups)], axis=-1)
    return np.concatenate([halves.view(np.uint32), tail.astype("f4").view(np.uint32)], axis=-1)


def _for_nibbles(halves: Array) -> Array:
    """Return the factors by which kernels multiply a low nibble and a whole byte."""
    # Kernels multiply the low nibble by `first`, and the whole byte, low + 16 high, by `second`.
    second = (halves[..., 16:].astype(np.float32) / 16).astype(np.float16)
    first = halves[..., :16].astype(np.float32) - second.astype(np.float32)
    return np.concatenate([first.astype(np.float16), second], axis=-1)


def _values(groups: Array, nibbles: bool) -> Array:
    """Undo `_for_nibbles`."""
    first, second = groups[..., :16], groups[..., 16:]
    return np.concatenate([first + second, 16 * second], axis=-1) if nibbles else groups


def f16_values(x: Array, nibbles: bool = False) -> Array:
    """Decode groups to values, (..., k)."""
    words = _in_a_row(x)
    halves = np.ascontiguousarray(words[..., :16]).view(np.float16).astype(np.float32)
    scale = np.ascontiguousarray(words[..., 16:17]).view(np.float32)
    return (_values(halves, nibbles) * scale).reshape(*words.shape[:-2], -1)


def _in_a_row(x: Array) -> Array:
    """Return groups of (..., 20) words, from planes or not."""
    whole = x if x.shape[-1] == WORDS else np.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], WORDS)
    return np.ascontiguousarray(whole)


def f16_rows_reference(x: Array) -> Array:
    """Round rows to f16, divided by a power of two whose exponent comes after the values."""
    x = x.astype(np.float32)
    largest = np.abs(x).view(np.uint32).max(axis=-1, keepdims=True)
    # The largest magnitude becomes 2^14 or more: 14 and the bias of 127 are 141.
    exponent = np.clip((largest >> np.uint32(23)).astype(np.int32), _SMALLEST, _LARGEST) - 141
    values = (x * np.ldexp(np.float32(1), -exponent)).astype(np.float16)
    tail = np.zeros((*x.shape[:-1], ROW_TAIL), np.float16)
    tail[..., :1] = exponent
    return np.concatenate([values, tail], axis=-1)


def f16_row_values(x: Array) -> Array:
    """Decode rows from `f16_rows_reference`."""
    exponent = x[..., -ROW_TAIL : 1 - ROW_TAIL].astype(np.int32)
    return np.ldexp(x[..., :-ROW_TAIL].astype(np.float32), exponent)


def f16_columns_spec(rows: Shape, k: int) -> Spec:
    """Return the spec of rows in f16 with values of one k together, see `f16_columns`."""
    n = prod(rows)
    # The last words of the last row are of no column.
    return Spec.dense((*rows, -(-_columns_words(n, k) // max(n, 1))), U32)


def _columns_words(n: int, k: int) -> int:
    return _filled_up(n) * (k // 2 + 1)


def _filled_up(n: int) -> int:
    return -(-n // COLUMNS_ALIGNED) * COLUMNS_ALIGNED


def f16_columns_reference(x: Array) -> Array:
    """Round rows to f16, divided by a power of two, and put values of one k together."""
    rows, k = x.shape[:-1], x.shape[-1]
    x = x.astype(np.float32).reshape(-1, k)
    largest = np.abs(x).view(np.uint32).max(axis=-1, keepdims=True)
    plain = (largest >= np.uint32(_SMALLEST << 23)) & (largest < _INFINITY)
    # The largest magnitude becomes 4 or more: 2 and the bias of 127 are 129.
    exponent = np.clip((largest >> np.uint32(23)).astype(np.int32), _SMALLEST, _LARGEST) - 129
    values = np.zeros((k, _filled_up(len(x))), np.float16)
    scaled = np.where(plain, x, np.float32(0)) * np.ldexp(np.float32(1), -exponent)
    values[:, : len(x)] = scaled.astype(np.float16).T
    power = np.where(plain, np.ldexp(np.float32(1), exponent), np.float32(0))
    powers = np.zeros(values.shape[1], np.float32)
    powers[: len(x)] = np.where(largest >= _INFINITY, np.float32(np.nan), power)[:, 0]
    spec = f16_columns_spec(rows, k)
    words = np.zeros(spec.size, np.uint32)
    words[: values.size // 2] = values.reshape(-1).view(np.uint32)
    words[values.size // 2 : _columns_words(len(x), k)] = powers.view(np.uint32)
    return words.reshape(spec.shape)


def f16_columns_values(x: Array, k: int) -> Array:
    """Decode rows that `f16_columns_reference` rounded to f16 with a power of two for each row."""
    rows, n = x.shape[:-1], prod(x.shape[:-1])
    words, filled = np.ascontiguousarray(x).reshape(-1), _filled_up(n)
    values = words[: filled * k // 2].view(np.float16).reshape(k, filled).astype(np.float32)
    powers = words[filled * k // 2 :][:filled].view(np.float32)
    return np.ascontiguousarray((values * powers).T[:n]).reshape(*rows, k)


def f16_norm_factor(x: Array, eps: float | None) -> Array:
    """Return the norm's factor of each row, (..., 1)."""
    if eps is None:
        return np.float32(1).reshape(1)
    words = _in_a_row(x)
    squares = np.ascontiguousarray(words[..., 19]).view(np.float32).sum(axis=-1, keepdims=True)
    return 1 / np.sqrt(squares / np.float32(32 * words.shape[-2]) + np.float32(eps))
