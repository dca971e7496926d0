"""Running folds along an axis: cumsum, cumprod, cummax, cummin, logcumsumexp."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wgpu_backend.dtypes import BOOL, DType, value_bits
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, grid_for, require, require_dtype, require_rank
from wgpu_backend.ops.elementwise.launches import WIDE
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.folding import (
    NUMBERS,
    REDUCTIONS,
    as_words,
    compute_dtype,
    numpy_dtype,
    reduce,
)
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import cast, flip
from wgpu_backend.ops.shape.shapes import reshape_node, swap_last

# Values folded in one go. The shaders have the same number.
BLOCK = 1024
MOST_AXES = 8
# What comes before all values, for floats.
FIRST = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf, "logaddexp": -math.inf}


def count_blocks(cols: int) -> int:
    """Return the number of blocks of a row."""
    return -(-cols // BLOCK)


@op(dense=("x", "carry"), trusted=True)
def scan(
    x: Node, carry: Node | None = None, *, kind: str = "sum", exclusive: bool = False
) -> Launch:
    """Fold blocks of each row, keeping every partial result; see `cumsum`.

    Parameters
    ----------
    x : (rows, cols)
        f32, f16, bf16, integers or bool.
    carry : (rows, blocks), of the type of the result, or None
        Each row folded up to the end of each block of 1,024 values; None where a row is one block,
        and of products of floats.
    kind : str
        ``sum``, ``prod``, ``max`` or ``min``; for floats also ``logaddexp``.
    exclusive : bool
        A result leaves its own value out.

    Returns
    -------
    (rows, cols), f32 of floats, integers of 64 bits as they are, i32 of signed ones, u32 of others.
    """
    rows, cols = x.spec.shape
    blocks = count_blocks(cols)
    number = compute_dtype(x.spec.dtype)
    whole = is_sequential(kind, x.spec.dtype)
    require(
        carry is not None or blocks < 2 or whole,
        ShapeError,
        f"scan: rows of {cols} values without carry, needs at most {BLOCK}",
    )
    return Launch(
        Spec.dense((rows, cols), number),
        {"x": x, "carry": x if carry is None else carry},
        groups=grid_for(rows if whole else rows * blocks),
        params={"rows": rows, "cols": cols, "blocks": blocks},
        choices={
            "WHOLE_ROWS": whole,
            "CARRIED": carry is not None,
            "EXCLUSIVE": exclusive,
            "FIRST": _initial_literal(kind, x.spec.dtype),
            **as_words(number, "x", "carry"),
            **REDUCTIONS[_block_kind(kind, number, exclusive), number],
        },
        work=2 * x.spec.nbytes,
    )


@scan.reference
def scan_reference(
    x: Array, carry: Array | None = None, *, kind: str = "sum", exclusive: bool = False
) -> Array:
    """Fold blocks of each row, keeping every partial result."""
    join, whole = JOINS[kind], x.astype(numpy_dtype(x.dtype))
    # A row as a whole, as f32 holds its products.
    if kind == "prod" and x.dtype.kind == "f":
        ones = np.ones((len(x), 1), np.float32)
        rows = np.concatenate([ones, x], axis=1)[:, : x.shape[1]] if exclusive else x
        return np.multiply.accumulate(rows, axis=1, dtype=np.float32)
    y = np.empty_like(whole)
    first = np.full((len(x), 1), _initial_value(kind, x.dtype), whole.dtype)
    for block, start in enumerate(range(0, x.shape[1], BLOCK)):
        part = whole[:, start : start + BLOCK]
        before = first if block == 0 or carry is None else carry[:, block - 1 : block]
        if exclusive:
            part = np.concatenate([before.astype(whole.dtype), part[:, :-1]], axis=1)
        found = join.accumulate(part, axis=1, dtype=whole.dtype)
        # Adding a 0 before the first value would lose the sign of -0.
        starts = exclusive or block == 0
        y[:, start : start + BLOCK] = found if starts else join(before, found)
    return y


def _block_kind(kind: str, dtype: DType, exclusive: bool) -> str:
    """Return the kind of `reduce` that folds blocks.

    Running sums of floats begin with their first value, as NumPy's do, and so keep the sign of
    -0.0. Exclusive ones begin with 0.0.
    """
    return "running_sum" if kind == "sum" and dtype in FLOATS and not exclusive else kind


def is_sequential(kind: str, dtype: DType) -> bool:
    """Return whether one work group folds the blocks of a row one after the other.

    The product of a block alone may overflow where the running product does not.
    """
    return kind == "prod" and dtype in FLOATS


def _initial_literal(kind: str, dtype: DType) -> str:
    """Return the fold's initial value as a WGSL literal."""
    bits = _initial_bits(kind, dtype)
    if dtype in WIDE:
        return f"vec2<u32>({bits % 2**32}u, {bits >> 32}u)"
    return f"{bits}u"


def _initial_bits(kind: str, dtype: DType) -> int:
    """Return the bits of the fold's initial value."""
    if dtype in WIDE and kind in ("sum", "prod"):
        return int(kind == "prod")
    if dtype in FLOATS or kind in ("sum", "prod"):
        return value_bits(FIRST[kind], compute_dtype(dtype))
    if dtype == BOOL:
        return int(kind == "min")
    assert dtype.numpy is not None
    ends = np.iinfo(dtype.numpy.name)
    return int(ends.max if kind == "min" else ends.min) % 2 ** (64 if dtype in WIDE else 32)


def cumsum(x: Node, axis: int = -1, *, reverse: bool = False, exclusive: bool = False) -> Node:
    """Compute the running sum along an axis.

    Parameters
    ----------
    x : (...)
        Up to eight axes, f32, f16, bf16, integers or bool.
    axis : int
        Another than the last one costs a copy, and the result is a view.
    reverse : bool
        Begin at the end of the axis; costs two copies.
    exclusive : bool
        Leave each value out of its own sum; the first is then 0.

    Returns
    -------
    Tensor of the shape of `x`, f32; of integers of 64 bits as they are, modulo 2⁶⁴, of other
    signed ones i32, of others u32, modulo 2³². NaN and infinities reach all that follows, as in
    NumPy.

    Raises
    ------
    ShapeError
        There is no such axis.
    """
    return _scan_axis("cumsum", "sum", x, axis, reverse, exclusive)


def cumprod(x: Node, axis: int = -1, *, reverse: bool = False, exclusive: bool = False) -> Node:
    """Compute the running product along an axis; see `cumsum`.

    Parameters
    ----------
    x, axis, reverse, exclusive
        As in `cumsum`; what comes before all values is 1.

    Returns
    -------
    Tensor of the shape of `x` and the type that `cumsum` gives.
    """
    return _scan_axis("cumprod", "prod", x, axis, reverse, exclusive)


def cummax(x: Node, axis: int = -1, *, reverse: bool = False, exclusive: bool = False) -> Node:
    """Compute the running maximum along an axis, NaN from the first NaN on; see `cumsum`.

    Parameters
    ----------
    x, axis, reverse, exclusive
        As in `cumsum`; what comes before all values is the lowest that their type has.

    Returns
    -------
    Like `x`.
    """
    found = _scan_axis("cummax", "max", x, axis, reverse, exclusive)
    return found if found.spec.dtype == x.spec.dtype else cast(found, dtype=x.spec.dtype)


def cummin(x: Node, axis: int = -1, *, reverse: bool = False, exclusive: bool = False) -> Node:
    """Compute the running minimum along an axis, NaN from the first NaN on; see `cumsum`.

    Parameters
    ----------
    x, axis, reverse, exclusive
        As in `cumsum`; what comes before all values is the largest that their type has.

    Returns
    -------
    Like `x`.
    """
    found = _scan_axis("cummin", "min", x, axis, reverse, exclusive)
    return found if found.spec.dtype == x.spec.dtype else cast(found, dtype=x.spec.dtype)


def logcumsumexp(
    x: Node, axis: int = -1, *, reverse: bool = False, exclusive: bool = False
) -> Node:
    """Compute the logarithm of the running sum of exponentials along an axis; see `cumsum`.

    Parameters
    ----------
    x : (...)
        Up to eight axes, f32, f16 or bf16.
    axis, reverse, exclusive
        As in `cumsum`; what comes before all values is -∞.

    Returns
    -------
    Tensor of the shape of `x`, f32.
    """
    require_dtype("logcumsumexp", "x", x, FLOATS)
    return _scan_axis("logcumsumexp", "logaddexp", x, axis, reverse, exclusive)


def _scan_axis(name: str, kind: str, x: Node, axis: int, reverse: bool, exclusive: bool) -> Node:
    require_rank(name, "x", x, 1, MOST_AXES)
    require_dtype(name, "x", x, NUMBERS)
    axis = x.spec.axis(axis, name)
    turned = swap_last(x, axis)
    if reverse:
        turned = flip(turned, axes=-1)
    shape = turned.spec.shape
    rows = reshape_node(turned, (x.spec.size // shape[-1] if x.spec.size else 0, shape[-1]))
    found = reshape_node(_rows(rows, kind, exclusive=exclusive), shape)
    return swap_last(flip(found, axes=-1) if reverse else found, axis)


def _rows(x: Node, kind: str, *, exclusive: bool = False) -> Node:
    if x.spec.shape[1] <= BLOCK or is_sequential(kind, x.spec.dtype):
        return scan(x, kind=kind, exclusive=exclusive)
    block_kind = _block_kind(kind, x.spec.dtype, exclusive)
    # Totals of blocks are scanned in turn: each is what the next block begins with.
    blocks = reduce(x, kind=block_kind, axes=(1,), part=BLOCK)
    return scan(x, _rows(blocks, kind), kind=kind, exclusive=exclusive)


JOINS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logaddexp": np.logaddexp,
}


def _initial_value(kind: str, dtype: np.dtype[Any]) -> float:
    """Return the fold's initial value."""
    if kind in ("sum", "prod"):
        return float(kind == "prod")
    if dtype.kind == "f":
        return np.inf if kind == "min" else -np.inf
    if dtype.kind == "b":
        return float(kind == "min")
    info = np.iinfo(dtype.name)
    return info.max if kind == "min" else info.min
