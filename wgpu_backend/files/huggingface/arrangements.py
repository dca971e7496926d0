"""Rows of tensors in other places than in their files, or under other shapes.

As in `values`, nothing is held: each function makes `Values` that read others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import MXFP4
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.values import Rows, Values


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
        spans = _spans(begin, end, cols)
        turned = ((x.read(at * rows, (at + 1) * rows).T, low, high) for at, low, high in spans)
        return np.concatenate([matrix[low:high] for matrix, low, high in turned])

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
        starts = ((at * whole + first, low, high) for at, low, high in _spans(begin, end, rows))
        return np.concatenate([x.read(start + low, start + high) for start, low, high in starts])

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
        starts = ((int(order[at]) * size, low, high) for at, low, high in _spans(begin, end, size))
        return np.concatenate([x.read(start + low, start + high) for start, low, high in starts])

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
        made = [parts[at].read(low, high) for at, low, high in _spans(begin, end, rows)]
        return made[0] if len(made) == 1 else np.concatenate(made)

    return Values((len(parts), *one.shape), one.dtype, read, one.step)


def _require_even(x: Values) -> None:
    if len(x.shape) < 2 or x.shape[-2] % 2:
        raise ModelError(f"of shape {x.shape}, needs an even number of rows to part")


def _spans(begin: int, end: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Blocks of so many rows that some rows lie in: which, and from where to where in each."""
    for at in range(begin // size, -(-end // size)):
        yield at, max(begin - at * size, 0), min(end - at * size, size)
