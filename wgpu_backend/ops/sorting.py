"""Ops that order the values of a row: argsort, top_k.

Values become keys that compare as unsigned integers. Blocks of a row are sorted in workgroup
memory, then runs are merged two and two, each thread finding its share of a merge by itself: as
many dispatches as the row's length has doublings above a block.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import F32, I32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, sliced
from wgpu_backend.ops import sampling
from wgpu_backend.ops.check import (
    FLOATS,
    MAX_GROUPS,
    require,
    require_dtype,
    require_rank,
    row_count,
    spread,
)
from wgpu_backend.ops.copying import cast
from wgpu_backend.ops.op import op
from wgpu_backend.ops.shapes import reshaped
from wgpu_backend.ops.views import viewed

BLOCK = 1024  # values that one work group sorts; `sort_blocks.wgsl` has its place for them
# Values that one thread merges: a search costs a software device as much as many steps.
GPU_CHUNK, SOFTWARE_CHUNK = 16, 256


@op(dense=("x",), trusted=True)
def sort_blocks(x: Node, *, descending: bool) -> Launch:
    """Sort blocks of 1,024 values of each row; see `argsort`.

    Parameters
    ----------
    x : (rows, cols), f32, f16, bf16 or i32
    descending : bool

    Returns
    -------
    (rows, cols, 2), u32
        Key and column of each value; (rows, cols), i32, the columns alone, where a block is a row.
    """
    rows, cols = x.spec.shape
    blocks = -(-cols // BLOCK)
    alone = blocks < 2
    return Launch(
        Spec.dense((rows, cols), I32) if alone else Spec.dense((rows, cols, 2), U32),
        {"x": x},
        groups=spread(rows * blocks),
        params={"rows": rows, "cols": cols, "blocks": blocks},
        choices={
            "INTEGER": x.spec.dtype == I32,
            "DESCENDING": descending,
            "IDS_ALONE": alone,
        },
        work=x.spec.nbytes * 16,
    )


def select_chunk(launch: Launch, capabilities: Capabilities) -> Launch:
    """Give each thread as much of the merge as suits the device."""
    chunk = SOFTWARE_CHUNK if capabilities.software else GPU_CHUNK
    rows, cols = launch.operands["pairs"].spec.shape[:2]
    chunks = -(-cols // chunk)
    return replace(
        launch,
        threads=rows * chunks,
        params={**launch.params, "chunks": chunks},
        choices={**launch.choices, "CHUNK": chunk},
    )


@op(select=select_chunk, dense=("pairs",), trusted=True)
def merge_runs(pairs: Node, *, run: int) -> Launch:
    """Merge the sorted runs of each row two and two; see `argsort`.

    Parameters
    ----------
    pairs : (rows, cols, 2), u32
        Keys and columns, sorted within each run.
    run : int
        Values in a run, a multiple of 256; the last may have fewer.

    Returns
    -------
    (rows, cols, 2), u32
        Sorted within runs twice as long; (rows, cols), i32, the columns alone, where that is a row.
    """
    rows, cols = pairs.spec.shape[:2]
    alone = 2 * run >= cols
    return Launch(
        Spec.dense((rows, cols), I32) if alone else pairs.spec,
        {"pairs": pairs},
        threads=rows * cols,
        params={"rows": rows, "cols": cols, "run": run},
        choices={"IDS_ALONE": alone},
        work=4 * pairs.spec.nbytes,
    )


def argsort(x: Node, *, descending: bool = False) -> Node:
    """Columns of each row in the order of their values; equal values keep their order.

    Parameters
    ----------
    x : (..., cols), f32, f16, bf16 or i32
        Rows of any length.
    descending : bool
        Largest first.

    Returns
    -------
    (..., cols), i32
        NaN counts as larger than any number, so it comes last, or first when descending.
    """
    require_rank("argsort", "x", x, 1)
    require_dtype("argsort", "x", x, (*FLOATS, I32))
    shape = x.spec.shape
    order = sort_blocks(reshaped(x, (row_count(x.spec), shape[-1])), descending=descending)
    run = BLOCK
    while order.spec.dtype == U32:
        order = merge_runs(order, run=run)
        run *= 2
    return reshaped(order, shape)


def top_k(x: Node, k: int) -> Node:
    """Columns of the largest values of each row, largest first.

    Parameters
    ----------
    x : (..., cols), f32, f16, bf16 or i32
    k : int
        1 to the length of a row; up to 256 also more, for floats.

    Returns
    -------
    (..., k), i32
        Of equal values the lower column first; NaN counts as larger than any number, and -1 fills
        up where a row has fewer values.

    Raises
    ------
    ShapeError
        `k` is out of range.
    """
    require_rank("top_k", "x", x, 1)
    require_dtype("top_k", "x", x, (*FLOATS, I32))
    cols, rows = x.spec.shape[-1], row_count(x.spec)
    shape = (*x.spec.shape[:-1], k)
    few = k <= sampling.MAX_K and 0 < rows <= MAX_GROUPS
    if few and cols and x.spec.dtype != I32:
        values = reshaped(x, (rows, cols))
        values = values if x.spec.dtype == F32 else cast(values, dtype=F32)
        return reshaped(sampling.top_k(values, k=k), shape)
    require(1 <= k <= cols, ShapeError, f"top_k: k is {k}, needs 1 to {cols}")
    order = argsort(x, descending=True)
    return viewed(order, sliced(order.spec, -1, 0, k))
