"""Gathers along an axis by ids: take_axes, take_along_axis."""

from __future__ import annotations

import math

import numpy as np

from wgpu_backend.dtypes import I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import require, require_dtype, require_rank, vec4s
from wgpu_backend.ops.index.bits import moving, require_plain
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

MOST_AXES = 8


@op(shader="ops/index/take", dense=("x", "ids"), trusted=True)
def take_axes(x: Node, ids: Node, axis: int) -> Launch:
    """Gather along an axis.

    Parameters
    ----------
    x : (..., n, ...)
        Any plain dtype.
    ids : (...), i32
        Ids below zero count from the end; what ids outside would take is 0.

    Returns
    -------
    Tensor with the axes of `ids` in place of that axis, of the dtype of `x`.

    Raises
    ------
    ShapeError
        There is no such axis, or the result would have more than eight.
    """
    axis = x.spec.axis(axis, "take_axes")
    require_dtype("take_axes", "ids", ids, (I32,))
    shape = (*x.spec.shape[:axis], *ids.spec.shape, *x.spec.shape[axis + 1 :])
    return _take(x, ids, axis, shape, along=False)


@take_axes.reference
def take_axes_reference(x: Array, ids: Array, axis: int) -> Array:
    """Gather along an axis; 0 for ids outside."""
    axis %= x.ndim
    extent = x.shape[axis]
    # A further entry of zeros stands for all ids outside.
    whole = np.concatenate([x, np.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)], axis)
    return np.take(whole, _inside(ids, extent), axis)


@op(shader="ops/index/take", dense=("x", "ids"), trusted=True)
def take_along_axis(x: Node, ids: Node, axis: int) -> Launch:
    """Gather along an axis with an id for every value of the result.

    Parameters
    ----------
    x : (..., n, ...)
        Any plain dtype.
    ids : (..., k, ...), i32, all other extents as in `x`
        As in `take_axes`.

    Returns
    -------
    Tensor of the shape of `ids` and the dtype of `x`.

    Raises
    ------
    ShapeError
        The extent of an axis other than `axis` differs.
    """
    axis = x.spec.axis(axis, "take_along_axis")
    require_like("take_along_axis", x, ids, axis)
    return _take(x, ids, axis, ids.spec.shape, along=True)


@take_along_axis.reference
def take_along_axis_reference(x: Array, ids: Array, axis: int) -> Array:
    """Gather along an axis with an id for every value."""
    extent = x.shape[axis]
    # A further zero stands for all ids outside.
    pad = [(0, int(a == axis % x.ndim)) for a in range(x.ndim)]
    return np.take_along_axis(np.pad(x, pad), _inside(ids, extent), axis)


def require_like(name: str, x: Node, ids: Node, axis: int) -> None:
    """Raise unless ids are i32 and have the shape of `x` but for one axis."""
    require_dtype(name, "ids", ids, (I32,))
    own, wanted = list(ids.spec.shape), list(x.spec.shape)
    require(
        len(own) == len(wanted)
        and own[:axis] + own[axis + 1 :] == wanted[:axis] + wanted[axis + 1 :],
        ShapeError,
        f"{name}: ids is {ids.spec.shape}, x is {x.spec.shape}; they differ beyond axis {axis}",
    )


def _take(x: Node, ids: Node, axis: int, shape: Shape, *, along: bool) -> Launch:
    require_plain("take_along_axis" if along else "take_axes", "x", x)
    require_rank("take_axes", "x", x, 1, MOST_AXES)
    require(
        len(shape) <= MOST_AXES,
        ShapeError,
        f"take_axes: {x.spec.shape} and ids {ids.spec.shape} give {len(shape)} axes, needs 0 to "
        f"{MOST_AXES}",
    )
    out = Spec.dense(shape, x.spec.dtype)
    return Launch(
        out,
        {"x": x, "ids": ids},
        threads=vec4s(out.size),
        params={
            "size": out.size,
            "count": ids.spec.shape[axis] if along else ids.spec.size,
            "extent": x.spec.shape[axis],
            "inner": math.prod(x.spec.shape[axis + 1 :]),
        },
        choices={**moving(out.dtype, "x"), "ALONG": along},
        work=2 * out.nbytes + ids.spec.nbytes,
    )


def _inside(ids: Array, extent: int) -> Array:
    """Count ids from the front; ids outside become `extent`."""
    wrapped = np.where(ids < 0, ids.astype(np.int64) + extent, ids)
    return np.where((wrapped >= 0) & (wrapped < extent), wrapped, extent)
