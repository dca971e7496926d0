"""Launches of `rows` and `set_rows` for each kind of matrix.

The ops check what all operands have in common, see `wgpu_backend.ops.index.indexing`.
"""

from __future__ import annotations

import math

from wgpu_backend.dtypes import F32, PLAIN
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, broadcast_strides, dense_strides
from wgpu_backend.ops.check import pad_to_4d, require, require_dtype, vec4s
from wgpu_backend.ops.index.bits import putting
from wgpu_backend.ops.shape.views import make_view

# Values of a row that a thread gathers from blocks.
GROUP = 32


def _stack_rows(x: Node) -> Node:
    """View dense matrices as one, stacked by rows."""
    *above, cols = x.spec.shape
    shape = (math.prod(above), cols)
    return make_view(x, Spec(shape, x.spec.dtype, dense_strides(shape), x.spec.offset))


def block_rows(x: Node, ids: Node) -> Launch:
    """Return a launch that gathers rows of a block format as f32.

    Parameters
    ----------
    x : (..., n, cols)
        Any block format, dense; a weight may lie in parts.
    ids : (..., k)
        i32, dense.

    Returns
    -------
    (..., k, cols), f32.

    Raises
    ------
    ShapeError
        Rows are not whole.
    """
    require(
        x.spec.is_dense,
        ShapeError,
        f"rows: a {x.spec.dtype} matrix is {x.spec.shape} of strides {x.spec.strides}, "
        f"needs whole rows, strides {dense_strides(x.spec.shape)}",
    )
    n, cols = x.spec.shape[-2:]
    out = Spec.dense((*ids.spec.shape, cols), F32)
    return Launch(
        out,
        {"weights": _stack_rows(x), "ids": ids},
        threads=out.size // GROUP,
        params={
            "size": out.size // GROUP,
            "groups": cols // GROUP,
            "count": ids.spec.shape[-1],
            "rows": n,
        },
        shader="ops/index/rows_quant",
        work=2 * out.nbytes,
    )


def rows_widened(x: Node, ids: Node) -> Launch:
    """Return a launch that gathers rows of floats as f32.

    Parameters
    ----------
    x : (..., n, cols)
        f32, f16 or bf16, any strides; a dense weight may lie in parts.
    ids : (..., k)
        i32, dense.

    Returns
    -------
    (..., k, cols), f32.
    """
    n, cols = x.spec.shape[-2:]
    out = Spec.dense((*ids.spec.shape, cols), F32)
    params = {"size": out.size, "cols": cols, "rows": n}
    # Only dense batches can be seen as one tall matrix.
    if len(x.spec.shape) > 2 and not x.spec.is_dense:
        return Launch(
            out,
            {"x": x, "ids": ids},
            threads=out.size,
            params={**params, "shape": pad_to_4d(out.shape, 1)},
            shader="ops/index/rows_batched",
            work=2 * out.nbytes,
        )
    matrix = x if len(x.spec.shape) == 2 else _stack_rows(x)
    row_stride, col_stride = matrix.spec.strides
    strides = {"row_stride": row_stride, "col_stride": col_stride}
    return Launch(
        out,
        {"weights": matrix, "ids": ids},
        threads=out.size,
        params={**params, **strides, "count": ids.spec.shape[-1]},
        work=2 * out.nbytes,
    )


def rows_moved(x: Node, ids: Node) -> Launch:
    """Return a launch that copies rows of a type that kernels do not compute in.

    Parameters
    ----------
    x : (..., n, cols)
        Any plain dtype, any strides.
    ids : (..., k)
        i32, dense.

    Returns
    -------
    (..., k, cols), of the dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is in blocks.
    """
    require_dtype("rows", "x", x, PLAIN)
    n, cols = x.spec.shape[-2:]
    out = Spec.dense((*ids.spec.shape, cols), x.spec.dtype)
    return Launch(
        out,
        {"x": x, "ids": ids},
        threads=out.size,
        params={"size": out.size, "cols": cols, "rows": n, "shape": pad_to_4d(out.shape, 1)},
        choices=putting(out.dtype, "x"),
        shader="ops/index/rows_bits",
        work=2 * out.nbytes,
    )


def set_rows_converted(dst: Node, x: Node, ids: Node) -> Launch:
    """Return a launch that writes rows of floats, converting, four values a thread.

    Parameters
    ----------
    dst : (..., n, cols)
        f32, f16 or bf16, dense; `cols` and its offset multiples of 4.
    x : (..., k, cols)
        f32, f16 or bf16, dense.
    ids : (..., k)
        i32, dense; batches broadcast to those of `x`.

    Returns
    -------
    `dst` after the write.
    """
    n, cols = dst.spec.shape[-2:]
    batched = len(dst.spec.shape) > 2
    return Launch(
        dst.spec,
        {"x": x, "ids": ids},
        threads=vec4s(x.spec.size),
        params={
            "size": x.spec.size,
            "rows": n,
            **({"ids_steps": _ids_steps(x, ids)} if batched else {"cols": cols}),
        },
        shader="ops/index/set_rows_batched" if batched else "ops/index/set_rows",
        into=dst,
        work=2 * x.spec.nbytes,
    )


def set_rows_moved(dst: Node, x: Node, ids: Node) -> Launch:
    """Return a launch that copies rows value by value.

    Parameters
    ----------
    dst : (..., n, cols)
        Any plain dtype, any strides.
    x : (..., k, cols)
        Of the dtype of `dst`, dense.
    ids : (..., k)
        i32, dense; batches broadcast to those of `x`.

    Returns
    -------
    `dst` after the write.
    """
    return Launch(
        dst.spec,
        {"x": x, "ids": ids},
        threads=x.spec.size,
        params={
            "size": x.spec.size,
            "rows": dst.spec.shape[-2],
            "ids_steps": _ids_steps(x, ids),
        },
        choices=putting(dst.spec.dtype, "x"),
        shader="ops/index/set_rows_bits",
        into=dst,
        work=2 * x.spec.nbytes,
    )


def _ids_steps(x: Node, ids: Node) -> tuple[int, int, int, int]:
    """Return the strides of `ids` along the axes of `x`; the last axis has none."""
    return pad_to_4d((*broadcast_strides(ids.spec, x.spec.shape[:-1]), 0), 0)
