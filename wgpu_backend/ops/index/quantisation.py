"""Launches between floats and block formats, for `cast` and `set_rows`."""

from __future__ import annotations

from wgpu_backend.dtypes import QUANTISABLE, DType
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, broadcast_strides, dense_strides
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require, require_dtype, require_rank

GROUP = 32
# Values of two blocks, whose f16 scales share a word: one thread writes whole words.
PAIR = 2 * GROUP


def dequantise(x: Node, dtype: DType) -> Launch:
    """Return a launch that turns blocks into floats.

    Parameters
    ----------
    x : (..., cols)
        Any block format, whole dense rows.
    dtype : DType
        f32, f16 or bf16.

    Raises
    ------
    DTypeError, ShapeError
        `dtype` is another type; `x` is strided.
    """
    require(dtype in FLOATS, DTypeError, f"cast: {x.spec.dtype} to {dtype}, needs f32, f16 or bf16")
    cols = x.spec.shape[-1]
    require(
        x.spec.is_dense and cols % x.spec.dtype.block == 0,
        ShapeError,
        f"cast: a {x.spec.dtype} tensor is {x.spec.shape} of strides {x.spec.strides}, needs "
        f"whole rows, strides {dense_strides(x.spec.shape)}",
    )
    # A weight in parts needs no care: as floats it is larger still than one binding.
    size = x.spec.size // GROUP
    return Launch(
        Spec.dense(x.spec.shape, dtype),
        {"weights": x},
        threads=size,
        params={"size": size},
        shader="ops/index/dequantise",
        work=x.spec.nbytes + dtype.nbytes(x.spec.size),
    )


def quantise(x: Node, dtype: DType) -> Launch:
    """Return a launch that rounds floats into blocks, to the same bits as gguf-py.

    Parameters
    ----------
    x : (..., cols), up to four axes of any strides; f32, f16 or bf16
        `cols` a multiple of 32. A scale below 2^-100 counts as zero.
    dtype : DType
        q8_0, q4_0, q4_1, q5_0 or q5_1.

    Raises
    ------
    DTypeError, ShapeError
        There is no kernel for these types; rows are not whole blocks.
    """
    _require_blocks(x, dtype)
    out = Spec.dense(x.spec.shape, dtype)
    params = {
        "blocks": out.size // GROUP,
        "shape": pad_to_4d(out.shape, 1),
        "x_strides": pad_to_4d(x.spec.strides, 0),
    }
    return Launch(
        out,
        {"x": x},
        threads=-(-out.size // PAIR),
        params=params,
        shader="ops/index/quantise",
        work=x.spec.nbytes + out.nbytes,
    )


def _require_blocks(x: Node, dtype: DType) -> None:
    """Check that rows are floats, and whole blocks of a format that kernels write."""
    wanted = ", ".join(map(str, QUANTISABLE))
    require(
        dtype in QUANTISABLE,
        DTypeError,
        f"cast: {x.spec.dtype} to {dtype}, block formats that kernels write are {wanted}",
    )
    require_dtype("cast", "x", x, FLOATS)
    require_rank("cast", "x", x, 1)
    cols = x.spec.shape[-1]
    require(
        cols % dtype.block == 0,
        ShapeError,
        f"cast: rows of {cols} values, {dtype} needs multiples of {dtype.block}",
    )


def set_rows_quantised(dst: Node, x: Node, ids: Node) -> Launch:
    """Return a launch of `set_rows` into blocks.

    Parameters
    ----------
    dst : (..., n, cols)
        q8_0, q4_0, q4_1, q5_0 or q5_1, dense; `cols` a multiple of 32.
    x : (..., k, cols)
        f32, f16 or bf16, dense.
    ids : (..., k), i32; batches broadcast to those of `x`
        Of two equal ids the row that results may be mixed of both.

    Returns
    -------
    `dst` after the write.

    Raises
    ------
    ShapeError
        `dst` is not dense, or its rows are not whole blocks.
    """
    rows, cols = dst.spec.shape[-2:]
    require(
        dst.spec.is_dense and cols % GROUP == 0 and dst.spec.offset % GROUP == 0,
        ShapeError,
        f"set_rows: a {dst.spec.dtype} dst has {cols} columns at offset {dst.spec.offset}, needs "
        f"a dense matrix and multiples of {GROUP}",
    )
    # Two blocks a thread, so that no two threads write one word; else atomic writes.
    taken = 1 if cols % PAIR or dst.spec.offset % PAIR else 2
    size = x.spec.size // (GROUP * taken)
    wanted = x.spec.shape[:-1]
    return Launch(
        dst.spec,
        {"x": x, "ids": ids},
        threads=size,
        params={
            "size": size,
            "columns": cols // (GROUP * taken),
            "count": wanted[-1],
            "rows": rows,
            "rows_shape": pad_to_4d(wanted, 1),
            "ids_steps": pad_to_4d(broadcast_strides(ids.spec, wanted), 0),
        },
        choices={"TAKEN": taken},
        shader="ops/index/set_rows_quant",
        into=dst,
        work=2 * x.spec.nbytes,
    )
