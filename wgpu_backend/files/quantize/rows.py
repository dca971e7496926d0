"""Quantisation of rows of values to any type that models are written in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import BF16, F16, F32, DType, convert_values
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.files.quantize import block_formats
from wgpu_backend.files.quantize.blocks import Bytes, Quantiser, squares
from wgpu_backend.files.quantize.decoding import decode_blocks
from wgpu_backend.files.quantize.search import Floats

# Values per piece: the data of a search then fits into a core's L2 cache.
_PIECE = 32768
_PLAIN = (F32, F16, BF16)
_QUANTISERS: Mapping[str, Quantiser] = {
    "q1_0": block_formats.q1_0,
    "q2_0": block_formats.q2_0,
    "q4_0": block_formats.q4_0,
    "q4_1": block_formats.q4_1,
    "q5_0": block_formats.q5_0,
    "q5_1": block_formats.q5_1,
    "q8_0": block_formats.q8_0,
    "q2_k": block_formats.q2_k,
    "q3_k": block_formats.q3_k,
    "q4_k": block_formats.q4_k,
    "q5_k": block_formats.q5_k,
    "q6_k": block_formats.q6_k,
    "iq4_nl": block_formats.iq4_nl,
    "iq4_xs": block_formats.iq4_xs,
    "mxfp4": block_formats.mxfp4,
    "tq1_0": block_formats.tq1_0,
    "tq2_0": block_formats.tq2_0,
}
WRITABLE = (*(dtype.name for dtype in _PLAIN), *_QUANTISERS)
# No format has a scale for larger values, and sums in searches would overflow.
_LARGEST = 1e9
# Offsets of a block's f16 scales, if they are not only at its start.
_HALVES: Mapping[str, tuple[int, ...]] = {
    "q4_1": (0, 2),
    "q5_1": (0, 2),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "mxfp4": (),
    "tq1_0": (52,),
    "tq2_0": (64,),
}
# Formats whose errors are weighted by the mean square of the whole row.
_NEEDS_ROW = ("q4_0", "q4_1", "q5_0", "q5_1")


def quantize_rows(
    values: NDArray[np.float32], dtype: DType, importance: NDArray[np.float32] | None = None
) -> bytes:
    """Quantise rows of values, bit for bit as llama.cpp does.

    Parameters
    ----------
    values : (rows, cols), f32
        `cols` is a multiple of the type's block.
    dtype : DType
        One of `WRITABLE`.
    importance : (cols,), f32, or None
        Weight of errors in each column, at least 0: mean squares of the activations that it is
        multiplied with, as in an importance matrix.

    Returns
    -------
    bytes
        The rows in sequence.

    Raises
    ------
    DTypeError
        The type cannot be written; a value is not finite, or too large for the type.
    ShapeError
        Columns are not a multiple of the block, or there is not one importance per column.
    """
    return b"".join(piece.tobytes() for piece in quantize_pieces(values, dtype, importance))


def quantize_pieces(
    values: NDArray[np.float32],
    dtype: DType,
    importance: NDArray[np.float32] | None = None,
    first_row: int = 0,
) -> Iterator[Bytes]:
    """Quantise as `quantize_rows`, in pieces of some rows, (rows, bytes of a row), uint8.

    Messages count rows from `first_row`.
    """
    importance = _check(values, dtype, importance)
    step = max(1, _PIECE // max(1, values.shape[1]))
    for first in range(0, len(values), step):
        rows = np.ascontiguousarray(values[first : first + step], np.float32)
        _require_finite(rows, dtype, first_row + first)
        yield _piece(rows, dtype, importance, first_row + first)


def round_blocks(values: Floats, dtype: DType) -> Bytes:
    """Quantise values (n, block), finite or not, without importances: (n, block_nbytes)."""
    with np.errstate(all="ignore"):
        return _QUANTISERS[dtype.name](values, None, None)


def _piece(rows: Floats, dtype: DType, importance: Floats | None, first: int) -> Bytes:
    if not dtype.quantised:
        return _plain(rows, dtype, first)
    blocks = rows.reshape(-1, dtype.block)
    shared = row_square = None
    if importance is not None:
        shared = np.broadcast_to(importance, rows.shape).reshape(blocks.shape)
        if dtype.name in _NEEDS_ROW:
            # llama.cpp's `sigma2`.
            mean = squares(rows) / np.float32(rows.shape[1])
            row_square = np.repeat(mean, len(blocks) // len(rows), axis=0)
    with np.errstate(all="ignore"):
        made = _QUANTISERS[dtype.name](blocks, shared, row_square)
    _require_scales(dtype, blocks, made, first, len(blocks) // len(rows))
    return made.reshape(len(rows), -1)


def _require_scales(
    dtype: DType, blocks: Floats, made: Bytes, first: int, blocks_per_row: int
) -> None:
    places = _HALVES.get(dtype.name, (0,))
    if not places:
        return
    beyond = np.abs(blocks).max(axis=1) > _LARGEST
    for place in places:
        scales = np.ascontiguousarray(made[:, place : place + 2]).view("<f2")[:, 0]
        beyond |= ~np.isfinite(scales)
    if beyond.any():
        row = first + int(beyond.argmax()) // blocks_per_row
        raise DTypeError(f"{dtype}: row {row} needs a scale beyond 65504, the largest of f16")


def _plain(rows: Floats, dtype: DType, first: int) -> Bytes:
    if dtype == F32:
        return rows.view(np.uint8)
    if dtype == F16:
        return convert_values(f"f16, rows from {first}", rows, F16).view(np.uint8)
    bits = rows.view(np.uint32)
    # To the nearest, ties to even: half of what is cut off, less one if the result is even.
    rounded = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype("<u2")
    # A finite number that rounding made infinite.
    if np.any(rounded & 0x7FFF == 0x7F80):
        row = first + int(np.any(rounded & 0x7FFF == 0x7F80, axis=1).argmax())
        raise DTypeError(f"bf16: row {row} has a value beyond 3.38953e38, the largest of bf16")
    return rounded.view(np.uint8)


def _check(
    values: NDArray[np.float32], dtype: DType, importance: NDArray[np.float32] | None
) -> Floats | None:
    if dtype not in _PLAIN and dtype.name not in _QUANTISERS:
        raise DTypeError(f"{dtype}: no type to quantise to; those are {', '.join(WRITABLE)}")
    if values.ndim != 2:
        raise ShapeError(f"{dtype}: values of {values.ndim} dimensions, needs rows and columns")
    cols = values.shape[1]
    if cols % dtype.block:
        raise ShapeError(f"{dtype}: {cols} columns, needs a multiple of {dtype.block}")
    if importance is None:
        return None
    if importance.shape != (cols,):
        raise ShapeError(
            f"{dtype}: importances of shape {importance.shape}, values have {cols} columns"
        )
    sound = np.isfinite(importance) & (importance >= 0)
    if not sound.all():
        at = int((~sound).argmax())
        raise DTypeError(f"{dtype}: importance of column {at} is {importance[at]}, needs 0 or more")
    return np.asarray(importance, np.float32)


def _require_finite(rows: Floats, dtype: DType, first: int) -> None:
    # A sum is not finite if a value is not; an overflow of the sum alone is sorted out below.
    if np.isfinite(rows.sum(dtype=np.float64)):
        return
    row, column = np.unravel_index(int((~np.isfinite(rows)).argmax()), rows.shape)
    if not np.isfinite(rows[row, column]):
        raise DTypeError(
            f"{dtype}: value {rows[row, column]} in row {first + int(row)}, column {int(column)}; "
            "needs finite numbers"
        )


def encode_blocks(dtype: DType, values: Floats) -> Bytes:
    """Encode values into blocks by the format's direct rounding.

    Parameters
    ----------
    dtype : DType
        q4_0, q4_1, q5_0, q5_1 or q8_0.
    values : (..., cols), f32
        `cols` is a multiple of the block.

    Returns
    -------
    (n, block_nbytes), uint8
    """
    rows = np.ascontiguousarray(values, np.float32).reshape(-1, dtype.block)
    return round_blocks(rows, dtype)


def round_to_blocks(dtype: DType, values: Floats) -> Floats:
    """Encode values into blocks and decode them again; the same shape."""
    if not values.size:
        return values
    return decode_blocks(dtype, encode_blocks(dtype, values)).reshape(values.shape)
