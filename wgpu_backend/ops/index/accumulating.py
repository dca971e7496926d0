"""Deterministic scatter-add and its relatives: fold_at, fold_along_axis.

Ids are sorted, and each value of the result finds its own. So no atomics are needed, which WGSL
lacks for floats, and values are added in the order of a stable sort.
"""

from __future__ import annotations

import math

import numpy as np

from wgpu_backend.dtypes import I32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import require, require_dtype, require_rank
from wgpu_backend.ops.index.taking import MOST_AXES, require_like, take_along_axis
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.folding import (
    NUMBERS,
    REDUCTIONS,
    as_words,
    compute_dtype,
    numpy_dtype,
)
from wgpu_backend.ops.reduce.scan import JOINS
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.sampling.sorting import argsort
from wgpu_backend.ops.shape.copying import cast
from wgpu_backend.ops.shape.shapes import reshape_node, swap_last

MODES = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


@op(shader="ops/index/fold_at", dense=("dst", "x", "ids", "order"), trusted=True)
def fold_sorted(
    dst: Node, x: Node, ids: Node, order: Node, *, axis: int, kind: str, along: bool
) -> Launch:
    """Fold values into others at sorted ids; see `fold_at`.

    Parameters
    ----------
    dst : (..., n, ...)
        f32, f16, bf16, integers or bool.
    x : (..., k, ...)
        Of the dtype of `dst`.
    ids, order : (k,), or with `along` (..., k), i32
        Sorted ids, and where each was.
    axis : int
        Counted from the front; with `along` the last one.
    kind : str
        ``sum``, ``prod``, ``max`` or ``min``.

    Returns
    -------
    Tensor of the shape of `dst`, f32 of floats, integers of 64 bits as they are, i32 of signed
    ones, u32 of others.
    """
    number = compute_dtype(dst.spec.dtype)
    out = Spec.dense(dst.spec.shape, number)
    return Launch(
        out,
        {"dst": dst, "x": x, "ids": ids, "order": order},
        threads=out.size,
        params={
            "size": out.size,
            "count": x.spec.shape[axis],
            "extent": dst.spec.shape[axis],
            "inner": math.prod(dst.spec.shape[axis + 1 :]),
        },
        choices={**REDUCTIONS[kind, number], **as_words(number, "dst", "x"), "ALONG": along},
        work=2 * out.nbytes * max(x.spec.shape[axis].bit_length(), 1) + 3 * x.spec.nbytes,
    )


@fold_sorted.reference
def fold_sorted_reference(
    dst: Array, x: Array, ids: Array, order: Array, *, axis: int, kind: str, along: bool
) -> Array:
    """Fold values one after the other."""
    extent = dst.shape[axis]
    lines = np.moveaxis(dst.astype(numpy_dtype(dst.dtype)), axis, -1)
    given = np.moveaxis(x.astype(lines.dtype), axis, -1)
    y = lines.reshape(math.prod(lines.shape[:-1]), extent).copy()
    values = given.reshape(len(y), ids.shape[-1])
    own, places = (np.broadcast_to(given, values.shape) for given in (ids, order))
    # Negative ids count from the end, as in NumPy.
    wrapped = np.where(own < 0, own.astype(np.int64) + extent, own)
    inside = (wrapped >= 0) & (wrapped < extent)
    row = np.broadcast_to(np.arange(len(y))[:, None], values.shape)
    taken = np.take_along_axis(values, places, 1) if values.size else values
    with np.errstate(all="ignore"):
        # `at` folds repeated places one after the other, in the order of the sorted ids.
        JOINS[kind].at(y, (row[inside], wrapped[inside]), taken[inside])
    return np.moveaxis(y.reshape(lines.shape), -1, axis)


def fold_at(x: Node, ids: Node, values: Node, axis: int, mode: str = "add") -> Node:
    """Fold values into a tensor along an axis, at ids that may repeat.

    Parameters
    ----------
    x : (..., n, ...)
        Up to eight axes, f32, f16, bf16, integers or bool.
    ids : (k,), i32
        Ids below zero count from the end; ids outside do nothing.
    values : (..., k, ...)
        Of the dtype of `x`.
    mode : str
        ``"add"``, ``"mul"``, ``"max"`` or ``"min"``.

    Returns
    -------
    Like `x`, dense, a new value; sums of floats are rounded once, and integers are modulo their
    range.

    Raises
    ------
    ShapeError
        Shapes do not go together.
    OptionError
        There is no such mode.
    """
    axis = _check_fold("fold_at", x, values, axis, mode)
    require_dtype("fold_at", "ids", ids, (I32,))
    wanted = (*x.spec.shape[:axis], ids.spec.size, *x.spec.shape[axis + 1 :])
    require(
        len(ids.spec.shape) == 1 and values.spec.shape == wanted,
        ShapeError,
        f"fold_at: ids is {ids.spec.shape}, values is {values.spec.shape}, x is {x.spec.shape}, "
        f"needs (k,) ids, and values of the shape of x but for k along axis {axis}",
    )
    # Sorted ids let one thread fold all values of a place, in their order: sums do not depend on
    # timing, as those of atomic additions do.
    order = argsort(ids)
    ordered = take_along_axis(ids, order, 0)
    found = fold_sorted(x, values, ordered, order, axis=axis, kind=MODES[mode], along=False)
    return found if found.spec.dtype == x.spec.dtype else cast(found, dtype=x.spec.dtype)


def fold_along_axis(x: Node, ids: Node, values: Node, axis: int, mode: str = "add") -> Node:
    """Fold values into a tensor along an axis, with an id for each value; ids may repeat.

    Parameters
    ----------
    x : (..., n, ...)
        Up to eight axes, f32, f16, bf16, integers or bool.
    ids : (..., k, ...), i32, all other extents as in `x`
        Ids below zero count from the end; ids outside do nothing.
    values : as `ids`, of the dtype of `x`
    mode : str
        As in `fold_at`.

    Returns
    -------
    Like `x`, a new value, as in `fold_at`.

    Raises
    ------
    ShapeError
        Shapes do not go together.
    OptionError
        There is no such mode.
    """
    axis = _check_fold("fold_along_axis", x, values, axis, mode)
    require_like("fold_along_axis", x, ids, axis)
    require(
        values.spec.shape == ids.spec.shape,
        ShapeError,
        f"fold_along_axis: values is {values.spec.shape}, ids is {ids.spec.shape}",
    )
    # Ids of a line are sorted along the last axis.
    last = swap_last(x, axis)
    shape, lines = last.spec.shape, math.prod(last.spec.shape[:-1])
    flat, own, given = (
        reshape_node(node, (lines, node.spec.shape[-1]))
        for node in (last, swap_last(ids, axis), swap_last(values, axis))
    )
    order = argsort(own)
    ordered = take_along_axis(own, order, 1)
    found = fold_sorted(flat, given, ordered, order, axis=1, kind=MODES[mode], along=True)
    made = found if found.spec.dtype == x.spec.dtype else cast(found, dtype=x.spec.dtype)
    return swap_last(reshape_node(made, shape), axis)


def _check_fold(name: str, x: Node, values: Node, axis: int, mode: str) -> int:
    """Check the operands, and return the axis counted from the front."""
    require_rank(name, "x", x, 1, MOST_AXES)
    require_dtype(name, "x", x, NUMBERS)
    require_dtype(name, "values", values, (x.spec.dtype,))
    require(mode in MODES, OptionError, f"{name}: mode is {mode!r}, needs one of {list(MODES)}")
    return x.spec.axis(axis, name)
