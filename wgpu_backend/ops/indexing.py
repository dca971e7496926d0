"""Ops that look rows up or put them away: rows, set_rows, argmax."""

from __future__ import annotations

from wgpu_backend.dtypes import F32, I32, QUANTISABLE
from wgpu_backend.errors import ContextError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, dense_strides
from wgpu_backend.ops.batched_rows import rows_of_each, set_rows_of_each
from wgpu_backend.ops.check import (
    FLOATS,
    quads,
    require,
    require_dtype,
    require_rank,
    row_count,
    spread,
)
from wgpu_backend.ops.op import op
from wgpu_backend.ops.quantisation import set_rows_quantised


@op(dense=("ids",), trusted=True)
def rows(x: Node, ids: Node) -> Launch:
    """Gather rows of a matrix; block formats are dequantised.

    Parameters
    ----------
    x : (n, cols), any float or block format; or (..., n, cols), any float
    ids : (k,), i32; or (..., k)
        Rows to take; the result of an id outside the matrix is undefined.

    Returns
    -------
    (k, cols), f32; or (..., k, cols).
    """
    rank = len(x.spec.shape)
    require_rank("rows", "x", x, 2)
    require_dtype("rows", "ids", ids, (I32,))
    if rank > 2:
        return rows_of_each(x, ids)
    require_rank("rows", "ids", ids, 1, 1)
    cols = x.spec.shape[-1]
    out = Spec.dense((ids.spec.shape[0], cols), F32)
    if x.spec.dtype.quantised:
        require(
            x.spec.is_dense,
            ShapeError,
            f"rows: a {x.spec.dtype} matrix is {x.spec.shape} of strides {x.spec.strides}, "
            f"needs whole rows, strides {dense_strides(x.spec.shape)}",
        )
        return Launch(
            out,
            {"weights": x, "ids": ids},
            threads=out.size // 32,
            params={"size": out.size // 32, "groups": cols // 32, "ids_stride": 1},
            shader="rows_quant",
            work=2 * out.nbytes,
        )
    return Launch(
        out,
        {"x": x, "ids": ids},
        threads=out.size,
        params={
            "size": out.size,
            "cols": cols,
            "row_stride": x.spec.strides[0],
            "col_stride": x.spec.strides[1],
            "ids_stride": 1,
        },
        work=2 * out.nbytes,
    )


@op(dense=("x", "ids"), trusted=True)
def set_rows(dst: Node, x: Node, ids: Node) -> Launch:
    """Write rows into a matrix, converting to its type.

    Parameters
    ----------
    dst : (n, cols), f32, f16 or bf16, dense; `cols` a multiple of 4
        Or q8_0, q4_0, q4_1, q5_0 or q5_1, `cols` a multiple of 64.
        Or (..., n, cols), f32, f16 or bf16.
    x : (k, cols), f32, f16 or bf16; or (..., k, cols)
    ids : (k,), i32; or (..., k), whose batches broadcast to those of `x`
        Row of `dst` that each row of `x` goes to; rows outside the matrix are dropped. Of two
        equal ids either may win.

    Returns
    -------
    `dst` after the write.

    Raises
    ------
    ShapeError
        Widths differ, `dst` is not dense, or `x` looks at it.
    ContextError
        `dst` is a weight or an input, which ops do not write.
    """
    rank = len(dst.spec.shape)
    require_rank("set_rows", "dst", dst, 2)
    require_rank("set_rows", "x", x, rank, rank)
    require_dtype("set_rows", "dst", dst, (*FLOATS, *QUANTISABLE))
    require_dtype("set_rows", "x", x, FLOATS)
    require_dtype("set_rows", "ids", ids, (I32,))
    _require_writable(dst, x)
    if rank > 2:
        return set_rows_of_each(dst, x, ids)
    n, cols = dst.spec.shape
    require(
        x.spec.shape[1] == cols,
        ShapeError,
        f"set_rows: rows of x have {x.spec.shape[1]} values, rows of dst have {cols}",
    )
    require(
        ids.spec.shape == x.spec.shape[:1],
        ShapeError,
        f"set_rows: {ids.spec.shape[0]} ids, x has {x.spec.shape[0]} rows",
    )
    if dst.spec.dtype.quantised:
        return set_rows_quantised(dst, x, ids)
    require(
        dst.spec.is_dense and cols % 4 == 0 and dst.spec.offset % 4 == 0,
        ShapeError,
        f"set_rows: dst has {cols} columns at offset {dst.spec.offset}, needs a dense matrix and "
        "multiples of 4",
    )
    return Launch(
        dst.spec,
        {"x": x, "ids": ids},
        threads=quads(x.spec.size),
        params={"size": x.spec.size, "cols": cols, "rows": n},
        into=dst,
        work=2 * x.spec.nbytes,
    )


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


@op(dense=("x",), trusted=True)
def argmax(x: Node) -> Launch:
    """Index of the largest value of each row, the first of equals.

    Parameters
    ----------
    x : (..., cols), f32, f16 or bf16

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
        groups=spread(count),
        params={"rows": count, "cols": x.spec.shape[-1]},
        work=x.spec.nbytes,
    )
