"""Launches of `rows` and `set_rows` over many matrices, each with ids of its own."""

from __future__ import annotations

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, broadcast_strides
from wgpu_backend.ops.check import FLOATS, four, quads, require, require_dtype, require_rank


def rows_of_each(x: Node, ids: Node) -> Launch:
    """Launch that gathers rows.

    Parameters
    ----------
    x : (..., n, cols), three or four axes of any strides; f32, f16 or bf16
    ids : (..., k), i32, dense

    Returns
    -------
    (..., k, cols), f32.

    Raises
    ------
    ShapeError
        Batches of `ids` are not those of `x`.
    """
    require_rank("rows", "x", x, 3)
    require_dtype("rows", "x", x, FLOATS)
    *batch, n, cols = x.spec.shape
    require(
        ids.spec.shape[:-1] == tuple(batch) and len(ids.spec.shape) > 0,
        ShapeError,
        f"rows: ids is {ids.spec.shape}, x is {x.spec.shape}, needs ({', '.join(map(str, batch))}, "
        "k) ids",
    )
    out = Spec.dense((*ids.spec.shape, cols), F32)
    return Launch(
        out,
        {"x": x, "ids": ids},
        threads=out.size,
        params={"size": out.size, "cols": cols, "rows": n, "shape": four(out.shape, 1)},
        shader="rows_batched",
        work=2 * out.nbytes,
    )


def set_rows_of_each(dst: Node, x: Node, ids: Node) -> Launch:
    """Launch that writes rows; what `dst` and `x` have in common is checked before.

    Parameters
    ----------
    dst : (..., n, cols), dense; f32, f16 or bf16
    x : (..., k, cols), dense
    ids : (..., k), i32, dense; batches broadcast to those of `x`

    Returns
    -------
    `dst` after the write.

    Raises
    ------
    ShapeError
        Batches differ, or rows are not whole vectors of four.
    """
    require_dtype("set_rows", "dst", dst, FLOATS)
    *batch, n, cols = dst.spec.shape
    require(
        x.spec.shape[:-2] == tuple(batch) and x.spec.shape[-1] == cols,
        ShapeError,
        f"set_rows: x is {x.spec.shape}, dst is {dst.spec.shape}, needs all but its rows",
    )
    wanted = x.spec.shape[:-1]
    own = ids.spec.shape
    require(
        len(own) <= len(wanted)
        and own[-1:] == wanted[-1:]
        and all(m in (1, k) for m, k in zip(own[::-1], wanted[::-1], strict=False)),
        ShapeError,
        f"set_rows: ids is {own}, rows of x are {wanted}, needs that shape or 1 for a batch",
    )
    require(
        dst.spec.is_dense and cols % 4 == 0 and dst.spec.offset % 4 == 0,
        ShapeError,
        f"set_rows: dst has {cols} columns at offset {dst.spec.offset}, needs a dense tensor and "
        "multiples of 4",
    )
    return Launch(
        dst.spec,
        {"x": x, "ids": ids},
        threads=quads(x.spec.size),
        params={
            "size": x.spec.size,
            "rows": n,
            "ids_steps": four((*broadcast_strides(ids.spec, wanted), 0), 0),
        },
        shader="set_rows_batched",
        into=dst,
        work=2 * x.spec.nbytes,
    )
