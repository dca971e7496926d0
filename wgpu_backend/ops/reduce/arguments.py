"""Indices of extremes along an axis, of any number type: argmax and argmin."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import grid_for, pad_to_4d, require, require_dtype
from wgpu_backend.ops.elementwise.comparison import equal
from wgpu_backend.ops.elementwise.launches import WIDE
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.folding import (
    AXES,
    NUMBERS,
    fold,
    integer_keys,
    split_axes,
    threads_alone,
)
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.shapes import reshape_node


@op(trusted=True)
def argument(x: Node, *, axis: int, smallest: bool) -> Launch:
    """Return the index of the largest or smallest value along an axis; see `argmax`.

    Parameters
    ----------
    x : (...), f32, f16, bf16, i32, i16, i8, u32, u16, u8 or bool
        The axes kept are at most four after joining those that step as one.

    Returns
    -------
    (outputs,), i32
        In the order of the axes kept.
    """
    kept, _ = split_axes(x.spec, (axis,))
    length, step = x.spec.shape[axis], x.spec.strides[axis]
    require(
        length > 0 and len(kept.shape) <= AXES,
        ShapeError,
        f"argument: x is {x.spec.shape} of strides {x.spec.strides}, axis {axis} has {length} "
        f"values, {len(kept.shape)} axes are kept; needs values, and at most {AXES} axes",
    )
    launch = Launch(
        Spec.dense((kept.size,), I32),
        {"x": x},
        groups=grid_for(kept.size),
        params={
            "outputs": kept.size,
            "length": length,
            "step": step,
            "kept_shape": pad_to_4d(kept.shape, 1),
            "kept_strides": pad_to_4d(kept.strides, 0),
        },
        choices={"SMALLEST": smallest, **integer_keys(x.spec.dtype)},
        work=x.spec.nbytes,
    )
    reduced = Spec((length,), x.spec.dtype, (step,))
    if not threads_alone(kept, reduced, length):
        return launch
    return replace(launch, shader="ops/reduce/argument_columns", groups=None, threads=kept.size)


@argument.reference
def argument_reference(x: Array, *, axis: int, smallest: bool) -> Array:
    """Return the index of an extreme along an axis."""
    return (np.argmin if smallest else np.argmax)(x, axis=axis).reshape(-1)


def argmax(x: Node, axis: int | None = None, *, keep_dims: bool = False) -> Node:
    """Return the index of an axis's largest value: NaN before all numbers, the first of equals.

    Parameters
    ----------
    x : (...)
        Up to eight axes, f32, f16, bf16, integers or bool.
    axis : int or None
        None counts through all values in row-major order.
    keep_dims : bool
        Leave the axis, or all axes, in the shape, as 1.

    Returns
    -------
    Tensor without the axis, i32.

    Raises
    ------
    ShapeError
        There is no such axis, or there is nothing to choose from.
    """
    return _argument("argmax", x, axis, keep_dims, smallest=False)


def argmin(x: Node, axis: int | None = None, *, keep_dims: bool = False) -> Node:
    """Return the index of an axis's smallest value: NaN before all numbers, the first of equals.

    Parameters
    ----------
    x : (...)
        Up to eight axes, f32, f16, bf16, integers or bool.
    axis, keep_dims
        As in `argmax`.

    Returns
    -------
    Tensor without the axis, i32.
    """
    return _argument("argmin", x, axis, keep_dims, smallest=True)


def _argument(name: str, x: Node, axis: int | None, keep_dims: bool, *, smallest: bool) -> Node:
    require_dtype(name, "x", x, NUMBERS)
    shape = x.spec.shape
    if axis is None:
        found, left = 0, tuple(1 for _ in shape) if keep_dims else ()
        x = reshape_node(x, (x.spec.size,))
    else:
        found = x.spec.axis(axis, name)
        left = (*shape[:found], *((1,) if keep_dims else ()), *shape[found + 1 :])
        # A dense tensor has few axes: neighbours that lie in order are merged.
        if len(split_axes(x.spec, (found,))[0].shape) > AXES:
            x = contiguous(x)
    require(
        x.spec.shape[found] > 0,
        ShapeError,
        f"{name}: x is {shape}, axis {axis} has 0 values, needs at least 1",
    )
    # No key of 32 bits orders these, so look for the first value that equals the extreme.
    if x.spec.dtype in WIDE:
        shape = x.spec.shape
        before, after = math.prod(shape[:found]), math.prod(shape[found + 1 :])
        x = reshape_node(x, (before, shape[found], after))
        found = 1
        extreme = fold(x, "min" if smallest else "max", (1,))
        x, smallest = equal(x, reshape_node(extreme, (before, 1, after))), False
    return reshape_node(argument(x, axis=found, smallest=smallest), left)
