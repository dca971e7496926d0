"""Values of a tensor that are read, and changed, a few rows at a time.

Nothing here holds a tensor: `Values.read` makes the rows that are asked for, out of rows that it
asks others for. A tensor of any number of axes is a matrix of rows here, those of its last axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.cpu.values import widened
from wgpu_backend.dtypes import BF16, F16, F32, MXFP4, DType
from wgpu_backend.errors import ModelError
from wgpu_backend.folders.safetensors import StoredTensor

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
        Given first row and end, the rows: (rows, cols) of the type's NumPy type, or of mxfp4's
        bytes.
    step : int
        Rows that are best read together, as they cost the same as one.
    """

    shape: tuple[int, ...]
    dtype: DType
    read: Read
    step: int = 1

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return math.prod(self.shape[:-1])

    @property
    def cols(self) -> int:
        """Values in a row."""
        return self.shape[-1] if self.shape else 1


def _e4m3() -> NDArray[np.float16]:
    """Floats of eight bits, four of them exponent, no infinity (Micikevicius et al. 2022, §3)."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    value = np.where(code & 127 == 127, np.nan, value)
    return np.where(code & 128, -value, value).astype(np.float16)


_E4M3 = _e4m3()
# Made of the bytes of a file: its type, and the NumPy type of what is in the file.
_KINDS: dict[str, tuple[DType, str, Callable[[Rows], Rows]]] = {
    "F32": (F32, "<f4", lambda rows: rows),
    "F16": (F16, "<f2", lambda rows: rows),
    "BF16": (BF16, "<u2", lambda rows: rows),
    "F64": (F32, "<f8", lambda rows: rows.astype(np.float32)),
    "F8_E4M3": (F16, "u1", lambda rows: _E4M3[rows]),
    # Halves that lost the lower eight bits.
    "F8_E5M2": (F16, "u1", lambda rows: (rows.astype(np.uint16) << 8).view(np.float16)),
}


def stored(tensor: StoredTensor) -> Values:
    """Values of a tensor in a file; floats of eight bits become f16, which holds them exactly.

    Raises
    ------
    ModelError
        They are no floats, or there are none.
    """
    if tensor.kind not in _KINDS:
        raise ModelError(
            f"{tensor.file.path}: tensor {tensor.name!r}: is {tensor.kind}, needs one of "
            f"{', '.join(_KINDS)}"
        )
    if not math.prod(tensor.shape):
        raise ModelError(f"{tensor.file.path}: tensor {tensor.name!r}: shape {tensor.shape}")
    dtype, kind, made = _KINDS[tensor.kind]
    raw = raw_rows(tensor, kind)
    return Values(tensor.shape or (1,), dtype, lambda begin, end: made(raw(begin, end)))


def raw_rows(tensor: StoredTensor, kind: str) -> Read:
    """How rows of a tensor are read as what is in the file."""
    cols = tensor.shape[-1] if tensor.shape else 1
    row_nbytes = cols * np.dtype(kind).itemsize

    def read(begin: int, end: int) -> Rows:
        offset, nbytes = tensor.offset + begin * row_nbytes, (end - begin) * row_nbytes
        data = tensor.file.read(f"tensor {tensor.name!r}", offset, nbytes)
        return np.frombuffer(data, kind).reshape(end - begin, cols)

    return read


def constant(values: NDArray[np.float32]) -> Values:
    """Values that are known."""
    rows = values.reshape(-1, values.shape[-1])
    return Values(values.shape, F32, lambda begin, end: rows[begin:end])


def as_f32(rows: Rows, dtype: DType) -> NDArray[np.float32]:
    """Rows of a float type as f32."""
    return widened(rows) if dtype == BF16 else rows.astype(np.float32, copy=False)


def plus(x: Values, addend: float) -> Values:
    """Values and a number, added in f32."""
    return Values(
        x.shape, F32, lambda b, e: as_f32(x.read(b, e), x.dtype) + np.float32(addend), x.step
    )


def negative_exponentials(x: Values) -> Values:
    """Minus the exponentials of values, rounded to f32: decays whose logarithms folders have."""

    def read(begin: int, end: int) -> Rows:
        logarithms = as_f32(x.read(begin, end), x.dtype).astype(np.float64)
        return -np.exp(logarithms).astype(np.float32)

    return Values(x.shape, F32, read, x.step)


def shaped(x: Values, *shape: int) -> Values:
    """The same rows under another shape.

    Raises
    ------
    ModelError
        The shape has others, or more or fewer.
    """
    if math.prod(shape) != math.prod(x.shape) or (shape[-1] != x.cols and x.rows != 1):
        raise ModelError(f"of shape {x.shape}, needs as many values as {shape}")
    if shape[-1] == x.cols:
        return replace(x, shape=shape)
    cols = shape[-1]
    return Values(shape, x.dtype, lambda b, e: x.read(0, 1).reshape(-1, cols)[b:e])


def columns(x: Values) -> Values:
    """Each value a row: biases, to be changed as the rows of their matrices are."""

    def read(begin: int, end: int) -> Rows:
        first, last = begin // x.cols, -(-end // x.cols)
        start = first * x.cols
        return x.read(first, last).reshape(-1, 1)[begin - start : end - start]

    return Values((*x.shape, 1), x.dtype, read)


def flat(x: Values) -> Values:
    """The reverse of `columns`."""
    cols = x.shape[-2]
    return Values(
        x.shape[:-1], x.dtype, lambda b, e: x.read(b * cols, e * cols).reshape(e - b, cols)
    )


def halves_interleaved(x: Values, heads: int) -> Values:
    """Rows of each head as rotation of neighbours wants them, from rotation of halves.

    Row i of the first half goes to row 2i of its head, row i of the second half to 2i + 1.

    Raises
    ------
    ModelError
        The rows are not those of so many heads.
    """
    size = x.rows // heads if heads else 0
    if not size or x.rows % heads or size % 2:
        raise ModelError(f"has {x.rows} rows, needs an even number for each of {heads} heads")

    def read(begin: int, end: int) -> Rows:
        first, last = begin // size, -(-end // size)
        rows = x.read(first * size, last * size)
        pairs = rows.reshape(last - first, 2, size // 2, x.cols).swapaxes(1, 2)
        start = first * size
        return pairs.reshape(rows.shape)[begin - start : end - start]

    return Values(x.shape, x.dtype, read, size)


def transposed(x: Values) -> Values:
    """Last two axes exchanged; a matrix is read as a whole."""
    *lead, rows, cols = x.shape
    if x.dtype == MXFP4:
        raise ModelError("has blocks of mxfp4, which cannot be transposed")

    def read(begin: int, end: int) -> Rows:
        made: list[Rows] = []
        for at in range(begin // cols, -(-end // cols)):
            matrix = x.read(at * rows, (at + 1) * rows).T
            made.append(matrix[max(begin - at * cols, 0) : end - at * cols])
        return np.concatenate(made)

    return Values((*lead, cols, rows), x.dtype, read, cols)


def every_other(x: Values, first: int) -> Values:
    """Every second row of each matrix, from row `first` on.

    Raises
    ------
    ModelError
        They have an odd number of rows.
    """
    _require_even(x)
    shape = (*x.shape[:-2], x.shape[-2] // 2, x.shape[-1])
    # Matrices have an even number of rows, so their borders are no borders here.
    step = x.step // 2 if x.step % 2 == 0 else x.step
    return Values(shape, x.dtype, lambda b, e: x.read(2 * b, 2 * e)[first::2], step)


def half(x: Values, which: int) -> Values:
    """First (0) or second (1) half of the rows of each matrix.

    Raises
    ------
    ModelError
        They have an odd number of rows.
    """
    _require_even(x)
    rows = x.shape[-2] // 2
    return rows_of_each(x, which * rows, (which + 1) * rows)


def rows_of_each(x: Values, first: int, end: int) -> Values:
    """Some rows of each matrix.

    Raises
    ------
    ModelError
        They have fewer.
    """
    whole, rows = x.shape[-2], end - first
    if not first < end <= whole:
        raise ModelError(f"of shape {x.shape}, needs rows {first} to {end}")

    def read(begin: int, end: int) -> Rows:
        made: list[Rows] = []
        for at in range(begin // rows, -(-end // rows)):
            low, high = max(begin - at * rows, 0), min(end - at * rows, rows)
            start = at * whole + first
            made.append(x.read(start + low, start + high))
        return np.concatenate(made)

    return Values((*x.shape[:-2], rows, x.shape[-1]), x.dtype, read)


def matrices(x: Values, count: int) -> Values:
    """A matrix as several, one behind the other: (count, rows / count, cols).

    Raises
    ------
    ModelError
        Its rows are no multiple of the count.
    """
    if len(x.shape) != 2 or not count or x.rows % count:
        raise ModelError(f"of shape {x.shape}, needs a multiple of {count} rows")
    return replace(x, shape=(count, x.rows // count, x.cols))


def queries_keys_values(x: Values, heads: int, kv_heads: int) -> Values:
    """All queries, then all keys, then all values, where each group of heads had its own.

    Parameters
    ----------
    x : Values
        Rows of a group: of its heads' queries, of its key, of its value.
    heads, kv_heads : int
        Of queries, and groups.

    Raises
    ------
    ModelError
        The rows are not those of so many heads.
    """
    count = heads + 2 * kv_heads
    if not kv_heads or heads % kv_heads or x.rows % count:
        raise ModelError(f"has {x.rows} rows, needs those of {heads} heads and {kv_heads} for keys")
    size, group = x.rows // count, heads // kv_heads + 2
    places = np.arange(count).reshape(kv_heads, group)
    order = np.concatenate([places[:, :-2].reshape(-1), places[:, -2], places[:, -1]])

    def read(begin: int, end: int) -> Rows:
        made: list[Rows] = []
        for at in range(begin // size, -(-end // size)):
            low, high = max(begin - at * size, 0), min(end - at * size, size)
            start = int(order[at]) * size
            made.append(x.read(start + low, start + high))
        return np.concatenate(made)

    return Values(x.shape, x.dtype, read)


def without_first(x: Values, rows: int) -> Values:
    """A matrix without its first rows."""
    shape = (x.rows - rows, x.cols)
    return Values(shape, x.dtype, lambda b, e: x.read(b + rows, e + rows), x.step)


def stacked(parts: Sequence[Values]) -> Values:
    """Tensors of one shape, one behind the other on a new first axis.

    Raises
    ------
    ModelError
        Their shapes or types differ.
    """
    one = parts[0]
    for part in parts:
        if (part.shape, part.dtype) != (one.shape, one.dtype):
            raise ModelError(
                f"has parts of {one.dtype} {one.shape} and of {part.dtype} {part.shape}"
            )
    rows = one.rows

    def read(begin: int, end: int) -> Rows:
        made: list[Rows] = []
        for at in range(begin // rows, -(-end // rows)):
            low, high = max(begin - at * rows, 0), min(end - at * rows, rows)
            made.append(parts[at].read(low, high))
        return made[0] if len(made) == 1 else np.concatenate(made)

    return Values((len(parts), *one.shape), one.dtype, read, one.step)


def scaled(x: Values, scales: NDArray[np.float32], block: tuple[int, int]) -> Values:
    """Values times scales; the result is f16, which has seven more bits than floats of eight.

    Parameters
    ----------
    x : Values
    scales : ndarray
        One for all, one for each row, or one for each block of a matrix.
    block : tuple of int
        Rows and columns of a block; where the matrix ends, it may be smaller.

    Raises
    ------
    ModelError
        The scales are none of these.
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
    """Weights of gpt-oss: (…, cols / 32, 16) bytes of two values and (…, cols / 32) exponents.

    A byte holds neighbours, the first in its lower half; GGUF's holds values i and i + 16.

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


def _require_even(x: Values) -> None:
    if len(x.shape) < 2 or x.shape[-2] % 2:
        raise ModelError(f"of shape {x.shape}, needs an even number of rows to part")
