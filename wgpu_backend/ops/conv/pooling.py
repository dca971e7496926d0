"""Pooling over one to three axes of channels-last tensors: max_pool, avg_pool."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Extents, Shape, Spec, extents
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank
from wgpu_backend.ops.conv.convolution import with_axes, without_axes
from wgpu_backend.ops.conv.extents import Padding, padded_sides, require_paddings, result_extents
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import in_vec4s
from wgpu_backend.ops.reference import Array


@op(dense=("x",), trusted=True)
def pool(
    x: Node,
    *,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[tuple[int, int]],
    count_padding: bool = True,
) -> Launch:
    """Reduce windows over three axes; `max_pool` and `avg_pool` call this op.

    Parameters
    ----------
    x : (n, d, h, w, c)
        f32, f16 or bf16.
    kind : str
        ``max`` or ``mean``.
    kernel, strides : three int each
        Of depth, height and width.
    paddings : three pairs of int
        Before and after.
    count_padding : bool
        A mean counts the zeros of the padding; else only values of `x`.

    Returns
    -------
    (n, od, oh, ow, c), f32.
    """
    pixels = result_extents(x.spec.shape[1:4], tuple(kernel), strides, paddings, (1, 1, 1))
    batch, channels = x.spec.shape[0], x.spec.shape[4]
    out = Spec.dense((batch, *pixels, channels), F32)
    vector = in_vec4s(channels, x)
    threads = out.size // 4 if vector else out.size
    return Launch(
        out,
        # A binding has one element type: VECTOR says which of the two is read.
        {"x": x, "vec4s": x},
        threads=threads,
        params={
            "count": threads,
            "blocks": channels // 4 if vector else channels,
            "channels": channels,
            # It changes neither a maximum nor a sum.
            "none": -math.inf if kind == "max" else 0.0,
            "size": (1, *x.spec.shape[1:4]),
            "out": out.shape[:4],
            "kernel": (1, *kernel),
            "step": (1, *strides),
            "before": (0, *(before for before, _ in paddings)),
        },
        choices={"VECTOR": vector, "LARGEST": kind == "max", "COUNTS_PADDING": count_padding},
        work=out.size * kernel[0] * kernel[1] * kernel[2] * 4,
    )


@pool.reference
def pool_reference(
    x: Array,
    *,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[tuple[int, int]],
    count_padding: bool = True,
) -> Array:
    """Take the largest value, or the mean, of each window of the padded tensor."""
    beyond = -np.inf if kind == "max" else 0
    windows = _windows(x.astype(np.float32), kernel, strides, paddings, beyond)
    if kind == "max":
        return windows.max(axis=(-3, -2, -1))
    # PyTorch's `count_include_pad`: padding counts as values, or does not.
    ones = _windows(np.ones_like(x, np.float32), kernel, strides, paddings, float(count_padding))
    counts = ones.sum(axis=(-3, -2, -1))
    # A window may lie in the padding alone.
    return windows.sum(axis=(-3, -2, -1)) / np.maximum(counts, 1)


def max_pool(
    x: Node,
    kernel: Extents,
    strides: Extents | None = None,
    paddings: int | Sequence[Padding] = 0,
) -> Node:
    """Take the largest value of each window of each channel; NaN if the window has one.

    Parameters
    ----------
    x : (n, ..., c)
        One to three axes between; f32, f16 or bf16.
    kernel : int, or one for each of these axes
        Extents of the window.
    strides : as `kernel`, or None
        From one window to the next; None is as large as the window.
    paddings : int, or one or a pair for each axis
        Around `x`, on both sides or before and after; never larger than what is in `x`.

    Returns
    -------
    (n, ..., c), f32
        ``(length + padding on both sides - kernel) // stride + 1`` along each axis; -inf where a
        window sees nothing but padding.

    Raises
    ------
    ShapeError
        The window is larger than the padded `x`, or a number is out of range.
    """
    return _pool("max_pool", "max", x, kernel, strides, paddings)


def avg_pool(
    x: Node,
    kernel: Extents,
    strides: Extents | None = None,
    paddings: int | Sequence[Padding] = 0,
    count_include_pad: bool = True,
) -> Node:
    """Take the mean of each window of each channel.

    Parameters
    ----------
    x, kernel, strides, paddings
        As in `max_pool`; padded with zeros.
    count_include_pad : bool
        Whether those count.

    Returns
    -------
    (n, ..., c), f32
        0 where a window sees nothing but padding.

    Raises
    ------
    ShapeError
        As in `max_pool`.
    """
    return _pool("avg_pool", "mean", x, kernel, strides, paddings, count_include_pad)


def _pool(
    name: str,
    kind: str,
    x: Node,
    kernel: Extents,
    strides: Extents | None,
    paddings: int | Sequence[Padding],
    count_padding: bool = True,
) -> Node:
    require_rank(name, "x", x, 3, 5)
    require_dtype(name, "x", x, FLOATS)
    axes = len(x.spec.shape) - 2
    window = _for_axes(f"{name}: kernel", kernel, axes)
    steps = window if strides is None else _for_axes(f"{name}: strides", strides, axes)
    around = [paddings] * axes if isinstance(paddings, int) else list(paddings)
    require(
        len(around) == axes, ShapeError, f"{name}: {len(around)} paddings, x has {axes} axes for it"
    )
    require_paddings(around)
    # One kernel for one to three axes: a missing one has a single value.
    missing = 3 - axes
    ones = (1,) * missing
    y = pool(
        with_axes(x, missing),
        kind=kind,
        kernel=(*ones, *window),
        strides=(*ones, *steps),
        paddings=[(0, 0)] * missing + padded_sides(around),
        count_padding=count_padding,
    )
    return without_axes(y, missing)


def _for_axes(subject: str, values: Extents, axes: int) -> Shape:
    """Return one number for each axis, from one for all or one for each."""
    found = extents(subject, values)
    found = found * axes if len(found) == 1 else found
    require(len(found) == axes, ShapeError, f"{subject} is {found}, x has {axes} axes for it")
    return found


def _windows(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[tuple[int, int]],
    beyond: float,
) -> Array:
    padded = np.pad(x, [(0, 0), *paddings, (0, 0)], constant_values=beyond)
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(1, 2, 3))
    return windows[:, *(slice(None, None, s) for s in strides)]
