"""Patches of a convolution as rows, and their sum back into an image: im2col, col2im."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank
from wgpu_backend.ops.conv.convolution import padded_by
from wgpu_backend.ops.conv.extents import Padding, padded_sides, result_extents
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


@op(trusted=True)
def im2col(
    x: Node,
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    dilations: Sequence[int] = (1, 1),
) -> Launch:
    """Gather the patch that each output pixel of a convolution sees; zeros beyond the border.

    ``weight.reshape(o, -1).mulmat(x.im2col((kh, kw), …))`` is ``x.conv2d(weight, …)``. `ml` writes
    ``kernel.IM2Col(input, …)``, takes nothing but the shape of the kernel, and orders values as (c,
    kh, kw).

    Parameters
    ----------
    x : (n, h, w, c)
        f32, f16 or bf16, of any strides.
    kernel : two int
        Its height and width.
    strides, paddings, dilations : two int each
        Of height and width; a padding may be two, before and after.

    Returns
    -------
    (n, oh, ow, kh * kw * c), f32
        Values in the order (kh, kw, c).

    Raises
    ------
    ShapeError
        The kernel is larger than the padded `x`.
    """
    require_rank("im2col", "x", x, 4)
    require_dtype("im2col", "x", x, FLOATS)
    batch, height, width, channels = x.spec.shape
    kh, kw = kernel
    sides = padded_sides(paddings)
    pixels = result_extents((height, width), (kh, kw), strides, sides, dilations)
    out = Spec.dense((batch, *pixels, kh * kw * channels), F32)
    return Launch(
        out,
        {"x": x},
        threads=out.size,
        params={
            "values": out.size,
            "channels": channels,
            "out": (batch, 1, *pixels),
            "kernel": (1, 1, kh, kw),
            "step": (1, 1, *strides),
            "before": (0, 0, *(before % 2**32 for before, _ in sides)),
            "dilation": (1, 1, *dilations),
        },
        work=2 * out.nbytes,
    )


@im2col.reference
def im2col_reference(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    dilations: Sequence[int] = (1, 1),
) -> Array:
    """Gather shifted pixels, one tap after the other."""
    padded = padded_by(x, paddings)
    height, width = (
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(padded.shape[1:3], kernel, strides, dilations, strict=True)
    )
    taps = [
        padded[
            :,
            kh * dilations[0] : kh * dilations[0] + strides[0] * (height - 1) + 1 : strides[0],
            kw * dilations[1] : kw * dilations[1] + strides[1] * (width - 1) + 1 : strides[1],
        ]
        for kh, kw in itertools.product(*map(range, kernel))
    ]
    # Taps before channels, in the order of a convolution's weight.
    return np.concatenate(taps, axis=-1)


@op(dense=("x",), trusted=True)
def col2im(
    x: Node,
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    dilations: Sequence[int] = (1, 1),
) -> Launch:
    """Sum the patches of `im2col` back to the pixels they came from.

    Every pixel is counted as often as a window saw it.

    Parameters
    ----------
    x : (n, oh, ow, kh * kw * c), f32, f16 or bf16
        Values in the order (kh, kw, c).
    shape : two int
        Height and width of the result.
    kernel, strides, paddings, dilations
        As `im2col` was given.

    Returns
    -------
    (n, h, w, c), f32

    Raises
    ------
    ShapeError
        `x` is not what `im2col` makes of an image of that shape.
    """
    require_rank("col2im", "x", x, 4, 4)
    require_dtype("col2im", "x", x, FLOATS)
    height, width = shape
    kh, kw = kernel
    sides = padded_sides(paddings)
    pixels = result_extents((height, width), (kh, kw), strides, sides, dilations)
    batch, *have, cols = x.spec.shape
    require(
        tuple(have) == pixels and cols % (kh * kw) == 0,
        ShapeError,
        f"col2im: x is {x.spec.shape}, needs {pixels} pixels of a multiple of {kh * kw} values",
    )
    out = Spec.dense((batch, height, width, cols // (kh * kw)), F32)
    return Launch(
        out,
        {"x": x},
        threads=out.size,
        params={
            "values": out.size,
            "out": out.shape,
            "columns": (batch, *pixels, cols),
            "kernel": (1, 1, kh, kw),
            "step": (1, 1, *strides),
            "before": (0, 0, *(before % 2**32 for before, _ in sides)),
            "dilation": (1, 1, *dilations),
        },
        work=2 * x.spec.nbytes,
    )


@col2im.reference
def col2im_reference(
    x: Array,
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    dilations: Sequence[int] = (1, 1),
) -> Array:
    """Add patches back to the pixels they came from."""
    sides = padded_sides(paddings)
    batch, height, width, cols = x.shape
    taps = x.reshape(batch, height, width, *kernel, cols // math.prod(kernel))
    # Windows never look beyond the padding; what is cut off at a side they do not see.
    whole = [n + max(a, 0) + max(b, 0) for n, (a, b) in zip(shape, sides, strict=True)]
    cut = [max(-a, 0) for a, _ in sides]
    y = np.zeros((batch, *whole, taps.shape[-1]), np.float32)
    for kh, kw in itertools.product(*map(range, kernel)):
        top, left = cut[0] + kh * dilations[0], cut[1] + kw * dilations[1]
        rows = slice(top, top + strides[0] * (height - 1) + 1, strides[0])
        cols = slice(left, left + strides[1] * (width - 1) + 1, strides[1])
        y[:, rows, cols] += taps[:, :, :, kh, kw]
    # The padding is cut off again.
    top, left = max(sides[0][0], 0), max(sides[1][0], 0)
    return y[:, top : top + shape[0], left : left + shape[1]]
