"""Ops that make images larger or smaller: avg_pool2d, interpolate. Images are the last two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, extents
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

Mode = Literal["nearest", "bilinear"]
# Products of two extents stay below 2³², in u32.
MAX_EXTENT = 32768


@op(trusted=True)
def avg_pool2d(x: Node, k: int, s: int, p: int = 0) -> Launch:
    """Take the mean of each square window; the zeros of the padding count.

    `ml` pools over its axes 0 and 1, which are the last two here.

    Parameters
    ----------
    x : (..., h, w)
        f32, f16 or bf16, of any strides.
    k, s, p : int
        Side of the window, step from one to the next, zeros around the image.

    Returns
    -------
    (..., (h + 2 p - k) // s + 1, (w + 2 p - k) // s + 1), f32.

    Raises
    ------
    ShapeError
        The window is larger than the padded image.
    """
    require_rank("avg_pool2d", "x", x, 2)
    require_dtype("avg_pool2d", "x", x, FLOATS)
    k, s, p = extents("avg_pool2d", (k, s, p))
    require(
        k > 0 and s > 0 and p >= 0,
        ShapeError,
        f"avg_pool2d: window {k}, step {s}, padding {p}; needs padding from 0, the others from 1",
    )
    *batch, height, width = x.spec.shape
    require(
        k <= min(height, width) + 2 * p,
        ShapeError,
        f"avg_pool2d: a window of {k}, the padded image is {height + 2 * p} by {width + 2 * p}",
    )
    out = Spec.dense((*batch, *((n + 2 * p - k) // s + 1 for n in (height, width))), F32)
    return Launch(
        out,
        {"x": x},
        threads=out.size,
        params={
            "size": out.size,
            "window": k,
            "step": s,
            "before": p,
            "out": pad_to_4d(out.shape, 1),
        },
        work=out.nbytes * (k * k + 1),
    )


@avg_pool2d.reference
def avg_pool2d_reference(x: Array, k: int, s: int, p: int = 0) -> Array:
    """Take the mean of each window of the padded image."""
    padded = np.pad(x, [*[(0, 0)] * (x.ndim - 2), (p, p), (p, p)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(-2, -1))
    return windows[..., ::s, ::s, :, :].mean(axis=(-2, -1))


@op(trusted=True)
def interpolate(x: Node, shape: Sequence[int], mode: Mode = "nearest") -> Launch:
    """Resize an image.

    Bilinear takes values between the centres of pixels, as ``align_corners=False`` elsewhere, and
    those at the border as they are; it works over the last two axes. Nearest takes value
    ``i * have // want`` along every axis, as bilinear does along the first ones.

    Parameters
    ----------
    x : (...)
        Two to four axes; f32, f16 or bf16, of any strides.
    shape : sequence of int
        Of the result, with as many axes, of at most 32,768 each.
    mode : str
        ``"nearest"`` or ``"bilinear"``.

    Returns
    -------
    Tensor of that shape, f32.

    Raises
    ------
    ShapeError
        `shape` has other than as many axes, an axis is empty or too long, or there is no such mode.
    """
    require_rank("interpolate", "x", x, 2)
    require_dtype("interpolate", "x", x, FLOATS)
    out = Spec.dense(shape, F32)
    _require_extents(x.spec.shape, out.shape)
    require(
        mode in ("nearest", "bilinear"),
        ShapeError,
        f"interpolate: mode is {mode!r}, needs 'nearest' or 'bilinear'",
    )
    return Launch(
        out,
        {"x": x},
        threads=out.size,
        params={"size": out.size, "out": pad_to_4d(out.shape, 1)},
        choices={"NEAREST": mode == "nearest"},
        work=out.nbytes * 5,
    )


@interpolate.reference
def interpolate_reference(x: Array, shape: Sequence[int], mode: str = "nearest") -> Array:
    """Take values by their nearest index, or between two, axis by axis."""
    for axis, want in enumerate(shape):
        have = x.shape[axis]
        if mode == "nearest" or axis < x.ndim - 2:
            # PyTorch's `nearest` rounds indices down.
            x = np.take(x, np.arange(want) * have // want, axis=axis)
            continue
        # Pixels have their values in their middle ("half-pixel centres").
        place = np.maximum((np.arange(want) + 0.5) * have / want - 0.5, 0)
        low = place.astype(np.int64)
        share = (place - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
        high = np.minimum(low + 1, have - 1)
        x = np.take(x, low, axis=axis) * (1 - share) + np.take(x, high, axis=axis) * share
    return x


def _require_extents(have: Shape, want: Shape) -> None:
    require(
        len(want) == len(have),
        ShapeError,
        f"interpolate: x is {have}, needs as many axes as {want}",
    )
    require(
        all(1 <= n <= MAX_EXTENT for n in (*want, *have)),
        ShapeError,
        f"interpolate: {have} to {want}, needs axes of 1 to {MAX_EXTENT} values",
    )
