"""Rows of values as the bytes of another type, as files hold them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wgpu_backend.dtypes import F32, DType
from wgpu_backend.errors import DTypeError
from wgpu_backend.folders.values import Values, as_f32
from wgpu_backend.quantise import WRITABLE, quantised

PIECE_NBYTES = 16 << 20  # of f32: enough for a disk, little beside a tensor


def require_writable(dtype: DType) -> None:
    """Refuse types that nothing here writes.

    Raises
    ------
    DTypeError
        Naming those that are written.
    """
    if dtype.name not in WRITABLE:
        raise DTypeError(f"type {dtype}: cannot be written, known are {', '.join(WRITABLE)}")


def pieces(values: Values, dtype: DType) -> Iterator[bytes | memoryview]:
    """Bytes of a tensor in a type, some rows at a time."""
    rows = max(1, PIECE_NBYTES // (4 * values.cols))
    rows = max(values.step, rows // values.step * values.step)
    for begin in range(0, values.rows, rows):
        yield rows_as(values, begin, min(begin + rows, values.rows), dtype)


def rows_as(values: Values, begin: int, end: int, dtype: DType) -> bytes | memoryview:
    """Bytes of some rows in a type."""
    rows = values.read(begin, end)
    if values.dtype == dtype:
        return _bytes(rows)
    floats = as_f32(rows, values.dtype)
    return _bytes(floats) if dtype == F32 else quantised(floats, dtype)


def _bytes(rows: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> memoryview:
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
