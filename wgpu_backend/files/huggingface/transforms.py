"""Tensor transforms: rows in another order or under another shape.

As in `values`, no tensor is kept in memory: each function makes `Values` that read others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import MXFP4
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.values import Rows, Values


def reshape(x: Values, *shape: int) -> Values:
    """View the same rows under another shape.

    Raises
    ------
    ModelError
        The shape has other rows, or another number of them.
    """
    if math.prod(shape) != math.prod(x.shape) or (shape[-1] != x.cols and x.rows != 1):
        raise ModelError(f"of shape {x.shape}, needs as many values as {shape}")
    if shape[-1] == x.cols:
        return replace(x, shape=shape)
    # Other columns are possible for a single row alone, whose values follow each other.
    cols = shape[-1]
    return Values(shape, x.dtype, lambda b, e: x.read(0, 1).reshape(-1, cols)[b:e])


def as_columns(x: Values) -> Values:
    """Make each value a row, so that biases can be moved like the rows of their matrices."""

    def read(begin: int, end: int) -> Rows:
        first, last = begin // x.cols, -(-end // x.cols)
        start = first * x.cols
        return x.read(first, last).reshape(-1, 1)[begin - start : end - start]

    return Values((*x.shape, 1), x.dtype, read)


def flatten_columns(x: Values) -> Values:
    """Undo `as_columns`."""
    cols = x.shape[-2]
    return Values(
        x.shape[:-1], x.dtype, lambda b, e: x.read(b * cols, e * cols).reshape(e - b, cols)
    )


def interleave_halves(x: Values, heads: int) -> Values:
    """Reorder the rows of each head from rotation of halves to rotation of adjacent pairs.

    Row i of the first half goes to row 2i of its head, row i of the second half to 2i + 1.

    Raises
    ------
    ModelError
        The rows do not fit this number of heads.
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


def split_pairs(x: Values, heads: int, rotated: int) -> Values:
    """Reorder the first `rotated` rows of each head from rotation of pairs to that of halves.

    Row 2i goes to row i, row 2i + 1 to the second half; the rows after them stay.

    Raises
    ------
    ModelError
        The rows do not fit this number of heads.
    """
    size = x.rows // heads if heads else 0
    if not size or x.rows % heads or rotated % 2 or rotated > size:
        raise ModelError(f"has {x.rows} rows, needs {rotated}, an even number, in {heads} heads")
    order = np.concatenate(
        [np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, size)]
    )

    def read(begin: int, end: int) -> Rows:
        first, last = begin // size, -(-end // size)
        rows = x.read(first * size, last * size).reshape(last - first, size, x.cols)[:, order]
        start = first * size
        return rows.reshape(-1, x.cols)[begin - start : end - start]

    return Values(x.shape, x.dtype, read, size)


def transpose(x: Values) -> Values:
    """Swap the last two axes; a matrix is read as a whole."""
    *lead, rows, cols = x.shape
    if x.dtype == MXFP4:
        raise ModelError("has blocks of mxfp4, which cannot be transposed")

    def read(begin: int, end: int) -> Rows:
        spans = _spans(begin, end, cols)
        turned = ((x.read(at * rows, (at + 1) * rows).T, low, high) for at, low, high in spans)
        return np.concatenate([matrix[low:high] for matrix, low, high in turned])

    return Values((*lead, cols, rows), x.dtype, read, cols)


def take_every_other(x: Values, first: int) -> Values:
    """Take every second row of each matrix, from row `first` on.

    Raises
    ------
    ModelError
        The matrices have an odd number of rows.
    """
    _require_even(x)
    shape = (*x.shape[:-2], x.shape[-2] // 2, x.shape[-1])
    # Matrices have an even number of rows, so the stride can cross their borders.
    step = x.step // 2 if x.step % 2 == 0 else x.step
    return Values(shape, x.dtype, lambda b, e: x.read(2 * b, 2 * e)[first::2], step)


def take_half(x: Values, which: int) -> Values:
    """Take the first (0) or second (1) half of the rows of each matrix.

    Raises
    ------
    ModelError
        The matrices have an odd number of rows.
    """
    _require_even(x)
    rows = x.shape[-2] // 2
    return slice_rows(x, which * rows, (which + 1) * rows)


def slice_rows(x: Values, first: int, end: int) -> Values:
    """Take some rows of each matrix.

    Raises
    ------
    ModelError
        The matrices have fewer rows.
    """
    whole, rows = x.shape[-2], end - first
    if not first < end <= whole:
        raise ModelError(f"of shape {x.shape}, needs rows {first} to {end}")

    def read(begin: int, end: int) -> Rows:
        starts = ((at * whole + first, low, high) for at, low, high in _spans(begin, end, rows))
        return np.concatenate([x.read(start + low, start + high) for start, low, high in starts])

    return Values((*x.shape[:-2], rows, x.shape[-1]), x.dtype, read)


def split_matrices(x: Values, count: int) -> Values:
    """Split a matrix into several: (count, rows / count, cols).

    Raises
    ------
    ModelError
        The rows are not a multiple of the count.
    """
    if len(x.shape) != 2 or not count or x.rows % count:
        raise ModelError(f"of shape {x.shape}, needs a multiple of {count} rows")
    return replace(x, shape=(count, x.rows // count, x.cols))


def ungroup_qkv(x: Values, heads: int, kv_heads: int) -> Values:
    """Order all queries, then all keys, then all values, from groups of heads.

    Parameters
    ----------
    x : Values
        Rows of each group: its heads' queries, its key, its value.
    heads, kv_heads : int
        Number of query heads, and of groups.

    Raises
    ------
    ModelError
        The rows do not fit this number of heads.
    """
    count = heads + 2 * kv_heads
    if not kv_heads or heads % kv_heads or x.rows % count:
        raise ModelError(f"has {x.rows} rows, needs those of {heads} heads and {kv_heads} for keys")
    size, group = x.rows // count, heads // kv_heads + 2
    # In a group the last but one head is the key and the last one the value.
    places = np.arange(count).reshape(kv_heads, group)
    order = np.concatenate([places[:, :-2].reshape(-1), places[:, -2], places[:, -1]])

    def read(begin: int, end: int) -> Rows:
        starts = ((int(order[at]) * size, low, high) for at, low, high in _spans(begin, end, size))
        return np.concatenate([x.read(start + low, start + high) for start, low, high in starts])

    return Values(x.shape, x.dtype, read)


def drop_first(x: Values, rows: int) -> Values:
    """Drop the first rows of a matrix."""
    shape = (x.rows - rows, x.cols)
    return Values(shape, x.dtype, lambda b, e: x.read(b + rows, e + rows), x.step)


def stack(parts: Sequence[Values]) -> Values:
    """Stack tensors of one shape on a new first axis.

    Raises
    ------
    ModelError
        Their shapes or types differ.
    """
    one = parts[0]
    for part in parts:
        if (part.shape, part.dtype) != (one.shape, one.dtype):
            raise ModelError(
                f"has parts of {one.dtype} {one.shape} and of {part.dtype} {part.shape}, needs one"
            )
    rows = one.rows

    def read(begin: int, end: int) -> Rows:
        made = [parts[at].read(low, high) for at, low, high in _spans(begin, end, rows)]
        # One part is the common case, and concatenating would copy it.
        return made[0] if len(made) == 1 else np.concatenate(made)

    return Values((len(parts), *one.shape), one.dtype, read, one.step)


def _require_even(x: Values) -> None:
    if len(x.shape) < 2 or x.shape[-2] % 2:
        raise ModelError(f"of shape {x.shape}, needs an even number of rows to split")


def _spans(begin: int, end: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks of `size` rows that overlap rows `begin` to `end`: number, begin, end."""
    for at in range(begin // size, -(-end // size)):
        yield at, max(begin - at * size, 0), min(end - at * size, size)
