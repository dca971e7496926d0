"""Running sums along an axis: cumsum."""

from __future__ import annotations

from wgpu_backend.dtypes import F32, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, grid_for, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.reduction import reduce
from wgpu_backend.ops.shape.shapes import reshaped, swapped

BLOCK = 1024  # values summed at one go; the shaders have the same number


def blocks_of(cols: int) -> int:
    """Blocks of a row."""
    return -(-cols // BLOCK)


@op(dense=("x", "carry"), trusted=True)
def scan(x: Node, carry: Node | None = None) -> Launch:
    """Running sums of blocks of each row; see `cumsum`.

    Parameters
    ----------
    x : (rows, cols), f32, f16, bf16 or i32
    carry : (rows, blocks), f32 or i32, or None
        Sum of each row up to the end of each block of 1,024 values; None where a row is one block.

    Returns
    -------
    (rows, cols), f32; i32 where `x` is.
    """
    rows, cols = x.spec.shape
    blocks = blocks_of(cols)
    number = I32 if x.spec.dtype == I32 else F32
    require(
        carry is not None or blocks < 2,
        ShapeError,
        f"scan: rows of {cols} values without carry, needs at most {BLOCK}",
    )
    return Launch(
        Spec.dense((rows, cols), number),
        {"x": x, "carry": x if carry is None else carry},
        groups=grid_for(rows * blocks),
        params={"rows": rows, "cols": cols, "blocks": blocks},
        choices={"CARRIED": carry is not None, "Value": number.name},
        work=2 * x.spec.nbytes,
    )


def cumsum(x: Node, axis: int = -1) -> Node:
    """Running sum along an axis, each value included.

    Parameters
    ----------
    x : (...), f32, f16, bf16 or i32
    axis : int
        Another than the last one costs a copy, and the result is a view.

    Returns
    -------
    Tensor of the shape of `x`, f32; i32, modulo 2³², where `x` is. NaN and infinities reach all
    that follows, as in NumPy.

    Raises
    ------
    ShapeError
        There is no such axis.
    """
    require_rank("cumsum", "x", x, 1)
    require_dtype("cumsum", "x", x, (*FLOATS, I32))
    axis = x.spec.axis(axis, "cumsum")
    turned = swapped(x, axis)
    shape = turned.spec.shape
    rows = reshaped(turned, (x.spec.size // shape[-1] if x.spec.size else 0, shape[-1]))
    return swapped(reshaped(_rows(rows), shape), axis)


def _rows(x: Node) -> Node:
    if x.spec.shape[1] <= BLOCK:
        return scan(x)
    return scan(x, _rows(reduce(x, kind="sum", axes=(1,), part=BLOCK)))
