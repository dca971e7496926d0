"""Lazy tensors that are read and converted a few rows at a time.

No tensor is kept in memory: `Values.read` makes the requested rows from rows of other values. A
tensor of any rank is treated as a matrix of rows along its last axis. Reordered rows are in
`transforms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import BF16, F16, F32, MXFP4, DType, bf16_to_f32
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.safetensors import StoredTensor

Rows = NDArray[Any]
Read = Callable[[int, int], Rows]


@dataclass(frozen=True, slots=True)
class Values:
    """A tensor whose rows can be read.

    Parameters
    ----------
    shape : tuple of int
        Row-major.
    dtype : DType
        f32, f16, bf16 or mxfp4.
    read : callable
        Given first row and end, returns the rows: (rows, cols) of the type's NumPy type, or of
        mxfp4's bytes.
    step : int
        Number of rows that cost the same as one and are best read together.
    """

    shape: tuple[int, ...]
    dtype: DType
    read: Read
    step: int = 1

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return math.prod(self.shape[:-1])

    @property
    def cols(self) -> int:
        """Return the number of values in a row."""
        return self.shape[-1] if self.shape else 1


def _e4m3() -> NDArray[np.float16]:
    """Return the values of 8-bit floats with a 4-bit exponent (Micikevicius et al. 2022, §3)."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    # The format has no infinities: the largest code of either sign is NaN.
    value = np.where(code & 127 == 127, np.nan, value)
    return np.where(code & 128, -value, value).astype(np.float16)


_E4M3 = _e4m3()
# By the file's type: the type it becomes, the NumPy type of its bytes, and the conversion.
_KINDS: dict[str, tuple[DType, str, Callable[[Rows], Rows]]] = {
    "F32": (F32, "<f4", lambda rows: rows),
    "F16": (F16, "<f2", lambda rows: rows),
    "BF16": (BF16, "<u2", lambda rows: rows),
    "F64": (F32, "<f8", lambda rows: rows.astype(np.float32)),
    "F8_E4M3": (F16, "u1", lambda rows: _E4M3[rows]),
    # E5M2 is the upper byte of a half.
    "F8_E5M2": (F16, "u1", lambda rows: (rows.astype(np.uint16) << 8).view(np.float16)),
}


def read_values(tensor: StoredTensor) -> Values:
    """Return the values of a tensor in a file; 8-bit floats become f16, which holds them exactly.

    Raises
    ------
    ModelError
        The values are not floats, or the tensor is empty.
    """
    if tensor.kind not in _KINDS:
        raise ModelError(
            f"{tensor.file.path}: tensor {tensor.name!r}: is {tensor.kind}, needs one of "
            f"{', '.join(_KINDS)}"
        )
    if not math.prod(tensor.shape):
        raise ModelError(
            f"{tensor.file.path}: tensor {tensor.name!r} has no values: shape {tensor.shape}"
        )
    dtype, kind, made = _KINDS[tensor.kind]
    raw = raw_rows(tensor, kind)
    return Values(tensor.shape or (1,), dtype, lambda begin, end: made(raw(begin, end)))


def raw_rows(tensor: StoredTensor, kind: str) -> Read:
    """Return a reader of a tensor's rows in the file's type."""
    cols = tensor.shape[-1] if tensor.shape else 1
    row_nbytes = cols * np.dtype(kind).itemsize

    def read(begin: int, end: int) -> Rows:
        offset, nbytes = tensor.offset + begin * row_nbytes, (end - begin) * row_nbytes
        data = tensor.file.read(f"tensor {tensor.name!r}", offset, nbytes)
        return np.frombuffer(data, kind).reshape(end - begin, cols)

    return read


def constant(values: NDArray[np.float32]) -> Values:
    """Return values of an array in memory."""
    rows = values.reshape(-1, values.shape[-1])
    return Values(values.shape, F32, lambda begin, end: rows[begin:end])


def as_f32(rows: Rows, dtype: DType) -> NDArray[np.float32]:
    """Convert rows of a float type to f32."""
    return bf16_to_f32(rows) if dtype == BF16 else rows.astype(np.float32, copy=False)


def plus(x: Values, addend: float) -> Values:
    """Add a number in f32."""
    return Values(
        x.shape, F32, lambda b, e: as_f32(x.read(b, e), x.dtype) + np.float32(addend), x.step
    )


def negative_exponentials(x: Values) -> Values:
    """Return minus the exponentials, rounded to f32: decays from the logarithms in checkpoints."""

    def read(begin: int, end: int) -> Rows:
        # Exponentials of f32 differ in the last bit by library; those of f64 round to the same f32.
        logarithms = as_f32(x.read(begin, end), x.dtype).astype(np.float64)
        return -np.exp(logarithms).astype(np.float32)

    return Values(x.shape, F32, read, x.step)


def apply_scales(x: Values, scales: NDArray[np.float32], block: tuple[int, int]) -> Values:
    """Multiply values by scales; the result is f16, which has seven more bits than 8-bit floats.

    Parameters
    ----------
    x : Values
        Values of a matrix.
    scales : ndarray
        One for all, one for each row, or one for each block of a matrix.
    block : tuple of int
        Rows and columns of a block; smaller at the matrix's ends.

    Raises
    ------
    ModelError
        The scales have another shape.
    """
    height, width = block
    wanted = (-(-x.rows // height), -(-x.cols // width))
    if scales.size == 1:
        (height, width), wanted = (x.rows, x.cols), (1, 1)
    elif scales.size == x.rows:
        (height, width), wanted = (1, x.cols), (x.rows, 1)
    elif scales.shape != wanted:
        raise ModelError(f"of shape {x.shape} has scales of shape {scales.shape}, needs {wanted}")
    grid = scales.reshape(wanted)

    def read(begin: int, end: int) -> Rows:
        of_rows = grid[np.arange(begin, end) // height]
        factors = np.repeat(of_rows, width, axis=1)[:, : x.cols]
        return (as_f32(x.read(begin, end), x.dtype) * factors).astype(np.float16)

    return replace(x, dtype=F16, read=read)


def packed_mxfp4(blocks: StoredTensor, scales: StoredTensor) -> Values:
    """Return gpt-oss weights: (…, cols / 32, 16) bytes of two values and (…, cols / 32) exponents.

    A byte holds adjacent values, the first in its lower half; GGUF's holds values i and i + 16.

    Raises
    ------
    ModelError
        The two do not belong together.
    """
    if blocks.shape != (*scales.shape, 16) or (blocks.kind, scales.kind) != ("U8", "U8"):
        raise ModelError(
            f"{blocks.file.path}: tensor {blocks.name!r}: {blocks.kind} of shape {blocks.shape}, "
            f"its scales are {scales.kind} of shape {scales.shape}"
        )
    groups = scales.shape[-1]
    quants, exponents = raw_rows(blocks, "u1"), raw_rows(scales, "u1")

    def read(begin: int, end: int) -> Rows:
        pairs = quants(begin * groups, end * groups)
        values = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1, 32)
        made = np.empty((len(values), 17), np.uint8)
        made[:, 0] = exponents(begin, end).reshape(-1)
        made[:, 1:] = values[:, :16] | values[:, 16:] << 4
        return made.reshape(end - begin, groups * 17)

    return Values((*scales.shape[:-1], groups * 32), MXFP4, read)
