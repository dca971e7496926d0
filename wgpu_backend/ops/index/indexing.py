"""Ops on rows by id, and the largest of a row: rows, set_rows, argmax."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import I32, PLAIN, QUANTISABLE
from wgpu_backend.errors import ContextError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import (
    FLOATS,
    grid_for,
    require,
    require_dtype,
    require_rank,
    row_count,
)
from wgpu_backend.ops.index.launches import (
    block_rows,
    rows_moved,
    rows_widened,
    set_rows_converted,
    set_rows_moved,
)
from wgpu_backend.ops.index.quantisation import set_rows_quantised
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

# Values of a row up to which argmax takes 64 threads a row, not 256: 131,077 rows of three took
# 0.88 instead of 3.3 s on lavapipe.
SHORT_ROW = 512


@op(dense=("ids",), trusted=True)
def rows(x: Node, ids: Node) -> Launch:
    """Gather rows of matrices; block formats are dequantised.

    Parameters
    ----------
    x : (..., n, cols)
        Any plain dtype of any strides, or any block format in whole rows.
    ids : (..., k), i32, batches as those of `x`
        Rows to take; the result of an id outside the matrix is undefined.

    Returns
    -------
    (..., k, cols), f32 of floats and block formats, else of the dtype of `x`.

    Raises
    ------
    ShapeError
        Batches of `ids` are not those of `x`, or rows of a block format are not whole.
    """
    require_rank("rows", "x", x, 2)
    require_dtype("rows", "ids", ids, (I32,))
    batch = x.spec.shape[:-2]
    require(
        len(ids.spec.shape) > 0 and ids.spec.shape[:-1] == batch,
        ShapeError,
        f"rows: ids is {ids.spec.shape}, x is {x.spec.shape}, needs "
        f"({', '.join([*map(str, batch), 'k'])}) ids",
    )
    if x.spec.dtype.quantised:
        return block_rows(x, ids)
    if x.spec.dtype not in FLOATS:
        return rows_moved(x, ids)
    return rows_widened(x, ids)


@rows.reference
def rows_reference(x: Array, ids: Array) -> Array:
    """Gather rows."""
    if x.ndim > 2:
        return np.take_along_axis(x, np.clip(ids, 0, x.shape[-2] - 1)[..., None], axis=-2)
    return x[np.clip(ids, 0, len(x) - 1)]


@op(dense=("x", "ids"), trusted=True)
def set_rows(dst: Node, x: Node, ids: Node) -> Launch:
    """Write rows into matrices; floats are converted to their type.

    Parameters
    ----------
    dst : (..., n, cols), any plain dtype of any strides
        Or q8_0, q4_0, q4_1, q5_0 or q5_1, dense, `cols` a multiple of 32.
    x : (..., k, cols), of the dtype of `dst`
        Or f32, f16 or bf16 where `dst` is another float or a block format; a plain `dst` must then
        be dense and `cols` a multiple of 4.
    ids : (..., k), i32, batches broadcast to those of `x`
        Row of `dst` that each row of `x` goes to; rows outside the matrix are dropped. Of two
        equal ids either may win.

    Returns
    -------
    `dst` after the write.

    Raises
    ------
    ShapeError
        Shapes do not go together, `dst` is not dense where it must be, or `x` looks at it.
    ContextError
        `dst` is a weight or an input, which ops do not write.
    """
    rank = len(dst.spec.shape)
    require_rank("set_rows", "dst", dst, 2)
    require_rank("set_rows", "x", x, rank, rank)
    require_dtype("set_rows", "dst", dst, (*PLAIN, *QUANTISABLE))
    converts = dst.spec.dtype in (*FLOATS, *QUANTISABLE)
    require_dtype("set_rows", "x", x, FLOATS if converts else (dst.spec.dtype,))
    require_dtype("set_rows", "ids", ids, (I32,))
    _require_writable(dst, x)
    _require_fitting(dst, x, ids)
    if dst.spec.dtype.quantised:
        return set_rows_quantised(dst, x, ids)
    vectors = dst.spec.is_dense and dst.spec.shape[-1] % 4 == 0 and dst.spec.offset % 4 == 0
    if x.spec.dtype == dst.spec.dtype and not (converts and vectors):
        return set_rows_moved(dst, x, ids)
    require(
        vectors,
        ShapeError,
        f"set_rows: {x.spec.dtype} into {dst.spec.shape} {dst.spec.dtype} of strides "
        f"{dst.spec.strides} at offset {dst.spec.offset}, a conversion needs a dense dst and "
        "multiples of 4; cast x first",
    )
    return set_rows_converted(dst, x, ids)


@set_rows.reference
def set_rows_reference(dst: Array, x: Array, ids: Array) -> Array:
    """Scatter rows into `dst`; ids outside it are dropped."""
    if dst.ndim > 2:
        of_each = np.broadcast_to(ids, x.shape[:-1])
        for batch in np.ndindex(x.shape[:-2]):
            set_rows_reference(dst[batch], x[batch], of_each[batch])
        return dst
    inside = (ids >= 0) & (ids < len(dst))
    dst[ids[inside]] = x[inside]
    return dst


def _require_writable(dst: Node, x: Node) -> None:
    kind = dst.storage.kind
    require(
        kind in ("state", "intermediate"),
        ContextError,
        f"set_rows: dst is {'a weight' if kind == 'weight' else 'an input'}, needs a state",
    )
    require(
        x.storage is not dst.storage,
        ShapeError,
        f"set_rows: x is a view of dst, {x.spec.shape} of {dst.spec.shape}, needs storage of its "
        "own; call contiguous()",
    )


def _require_fitting(dst: Node, x: Node, ids: Node) -> None:
    """Raise ShapeError unless `x` has the shape of `dst` but for its rows, with an id for each."""
    *batch, _, cols = dst.spec.shape
    require(
        x.spec.shape[:-2] == tuple(batch) and x.spec.shape[-1] == cols,
        ShapeError,
        f"set_rows: x is {x.spec.shape}, dst is {dst.spec.shape}, needs all but its rows",
    )
    wanted, own = x.spec.shape[:-1], ids.spec.shape
    require(
        len(own) <= len(wanted)
        and own[-1:] == wanted[-1:]
        and all(m in (1, k) for m, k in zip(own[::-1], wanted[::-1], strict=False)),
        ShapeError,
        f"set_rows: ids is {own}, rows of x are {wanted}, needs that shape or 1 for a batch",
    )


@op(dense=("x",), trusted=True)
def argmax(x: Node) -> Launch:
    """Return the index of each row's largest value: NaN above all numbers, the first of equals.

    Parameters
    ----------
    x : (..., cols)
        f32, f16 or bf16.

    Returns
    -------
    (...), i32.

    Raises
    ------
    ShapeError
        Rows are empty.
    """
    require_rank("argmax", "x", x, 1)
    require_dtype("argmax", "x", x, FLOATS)
    require(x.spec.shape[-1] > 0, ShapeError, "argmax: rows of x have 0 values, need at least 1")
    count = row_count(x.spec)
    return Launch(
        Spec.dense(x.spec.shape[:-1], I32),
        {"x": x},
        groups=grid_for(count),
        params={"rows": count, "cols": x.spec.shape[-1]},
        # Long rows are few: as many threads as the smallest device allows. Each takes eight values
        # at once, so more than 64 would find nothing to do in short ones, which are many.
        choices={"WG": 256 if x.spec.shape[-1] > SHORT_ROW else 64},
        work=x.spec.nbytes,
    )


@argmax.reference
def argmax_reference(x: Array) -> Array:
    """Return the index of the largest value of each row."""
    return np.argmax(x, axis=-1)
