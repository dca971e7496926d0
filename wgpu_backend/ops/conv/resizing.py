"""Image resizing with channels last: resize.

Every mode is a weighted sum of neighbours along an axis. The host computes the weights: a table
has, for each value of the result, the first neighbour and the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, extents
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank
from wgpu_backend.ops.conv.resampling import MAX_EXTENT, interpolate
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import in_vec4s
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import cast

ResizeMode = Literal["nearest", "nearest-exact", "bilinear", "bicubic", "area"]
MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
SMOOTH = ("bilinear", "bicubic")
# Neighbours by their place, for each value of the result.
Weights = list[Mapping[int, float]]


@op(dense=("x",), constants=("table",), trusted=True)
def resample(x: Node, table: Node, *, axis: int) -> Launch:
    """Sum neighbours along an axis by weights.

    Parameters
    ----------
    x : (...)
        f32, f16 or bf16.
    table : (want, 1 + taps), f32
        For each value of the result: the first neighbour, then weights, zeros after the last.
    axis : int
        Counted from the front.

    Returns
    -------
    Tensor with `want` values along the axis, f32.
    """
    shape = x.spec.shape
    (want, columns), inner = table.spec.shape, math.prod(shape[axis + 1 :])
    out = Spec.dense((*shape[:axis], want, *shape[axis + 1 :]), F32)
    vector = in_vec4s(inner, x)
    threads = out.size // 4 if vector else out.size
    return Launch(
        out,
        {"x": x, "vec4s": x, "table": table},
        threads=threads,
        params={
            "count": threads,
            "blocks": inner // 4 if vector else inner,
            "inner": inner,
            "have": shape[axis],
            "want": want,
            "columns": columns,
        },
        choices={"VECTOR": vector},
        work=out.nbytes * columns,
    )


@resample.reference
def resample_reference(x: Array, table: Array, *, axis: int) -> Array:
    """Sum neighbours times their weights one after the other, skipping those of weight 0."""
    ones = (1,) * (x.ndim - 1 - axis)
    first, last = table[:, 0].astype(np.int64), x.shape[axis] - 1
    y = np.zeros((*x.shape[:axis], len(table), *x.shape[axis + 1 :]))
    for k in range(table.shape[1] - 1):
        weights = table[:, 1 + k].reshape(-1, *ones)
        seen = np.take(x, np.minimum(first + k, last), axis=axis)
        y += np.where(weights == 0, 0, seen) * weights
    return y


def resize(
    x: Node,
    height: int,
    width: int,
    mode: ResizeMode = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
) -> Node:
    """Resize images, as PyTorch's ``interpolate`` does.

    Parameters
    ----------
    x : (n, h, w, c)
        f32, f16 or bf16.
    height, width : int
        Of the result, at most 32,768.
    mode : str
        ``nearest``: the value that a pixel begins in. ``nearest-exact``: the one its centre is in.
        ``bilinear``: between two along each axis. ``bicubic``: a cubic through four (Keys 1981,
        "Cubic convolution interpolation for digital image processing", a = -3/4; -1/2 with
        `antialias`). ``area``: the mean of all values that a pixel touches.
    align_corners : bool
        The centres of the outermost pixels stay where they are; else the borders do. With
        `antialias` pixels are as far apart as then, but the borders stay, as there.
    antialias : bool
        A picture that is made smaller is filtered: curves are as wide as pixels of the result.

    Returns
    -------
    (n, height, width, c), f32

    Raises
    ------
    ShapeError
        `x` has other axes, or an extent is out of range.
    OptionError
        There is no such mode, or it is neither bilinear nor bicubic and cannot do what is asked.
    """
    require_rank("resize", "x", x, 4, 4)
    require_dtype("resize", "x", x, FLOATS)
    _, *have, _ = x.spec.shape
    want = extents("resize: height, width", (height, width))
    require(
        all(1 <= n <= MAX_EXTENT for n in (*have, *want)),
        ShapeError,
        f"resize: {tuple(have)} to {want}, needs 1 to {MAX_EXTENT} along both axes",
    )
    require(mode in MODES, OptionError, f"resize: mode is {mode!r}, needs one of {MODES}")
    require(
        mode in SMOOTH or not (align_corners or antialias),
        OptionError,
        f"resize: mode {mode!r} neither aligns corners nor filters, needs one of {SMOOTH}",
    )
    # By whole factors values only repeat, which needs no weights.
    if mode == "nearest" and all(w % h == 0 for h, w in zip(have, want, strict=True)):
        return interpolate(x, (x.spec.shape[0], *want, x.spec.shape[3]))
    # First the axis that becomes the shorter one.
    for axis in sorted((1, 2), key=lambda axis: want[axis - 1] / have[axis - 1]):
        table = make_table(
            axis_weights(have[axis - 1], want[axis - 1], mode, align_corners, antialias)
        )
        if not _is_identity(table, have[axis - 1]):
            x = resample(x, table, axis=axis)  # pyright: ignore[reportArgumentType]
    return cast(x, dtype=F32)


def make_table(weights: Weights) -> Array:
    """Make the table of `resample`: the first neighbour of each value, and the weights."""
    spans = [max(row) - min(row) + 1 for row in weights]
    table = np.zeros((len(weights), 1 + max(spans)), np.float32)
    for line, row in zip(table, weights, strict=True):
        line[0] = min(row)
        for place, weight in row.items():
            line[1 + place - min(row)] = weight
    return table


def _is_identity(table: Array, have: int) -> bool:
    same = len(table) == have and np.array_equal(table[:, 0], np.arange(have))
    return bool(same and (table[:, 1] == 1).all() and (table[:, 2:] == 0).all())


def axis_weights(
    have: int, want: int, mode: ResizeMode, align_corners: bool = False, antialias: bool = False
) -> Weights:
    """Return the weights of the values along an axis for each value of the result."""
    if mode == "area":
        return [_mean(i * have // want, -(-(i + 1) * have // want)) for i in range(want)]
    scale = have / want
    # In f32, as other libraries do it, which is one value off now and then.
    if mode == "nearest":
        rounded = np.float32(have) / np.float32(want)
        places = [int(np.float32(i) * rounded) for i in range(want)]
        return [{min(place, have - 1): 1.0} for place in places]
    if mode == "nearest-exact":
        return [{min(int((i + 0.5) * scale), have - 1): 1.0} for i in range(want)]
    if align_corners:
        scale = (have - 1) / (want - 1) if want > 1 else 0.0
    half = 0.0 if align_corners else 0.5
    if antialias:
        curve, reach = (_linear, 1) if mode == "bilinear" else (_cubic_half, 2)
        return [_filter_weights(i, have, scale, curve, reach) for i in range(want)]
    between = between_two if mode == "bilinear" else between_four
    return [between(scale * (i + half) - half, have) for i in range(want)]


def _mean(start: int, stop: int) -> dict[int, float]:
    return dict.fromkeys(range(start, stop), 1 / (stop - start))


def between_two(place: float, have: int) -> dict[int, float]:
    """Return the weights of the two values around a place; the border's values repeat outside."""
    place = max(place, 0.0)
    low = min(int(place), have - 1)
    return _clip_weights(low, [1 - (place - low), place - low], have)


def between_four(place: float, have: int) -> dict[int, float]:
    """Return the weights of a cubic through four values; the border's values repeat outside."""
    low = math.floor(place)
    # PyTorch's slope for `bicubic`, which is -0.5 with `antialias`.
    return _clip_weights(low - 1, [_cubic(place - low + 1 - k, -0.75) for k in range(4)], have)


def _clip_weights(first: int, weights: list[float], have: int) -> dict[int, float]:
    """Return the weights by place; weights beyond the border go to the border's values."""
    row: dict[int, float] = {}
    for place, weight in enumerate(weights, first):
        inside = min(max(place, 0), have - 1)
        # Several places beyond the border share one value.
        row[inside] = row.get(inside, 0.0) + weight
    return row


def _filter_weights(
    i: int, have: int, scale: float, curve: Callable[[float], float], reach: int
) -> dict[int, float]:
    """Return the weights of the input pixels for output pixel `i`, by place; they add up to 1."""
    # Only a smaller result needs a wider filter.
    wide = max(scale, 1.0)
    centre, support = scale * (i + 0.5), reach * wide
    start = max(int(centre - support + 0.5), 0)
    stop = min(int(centre + support + 0.5), have)
    row = {p: curve((p - centre + 0.5) / wide) for p in range(start, stop)}
    total = sum(row.values())
    return {place: weight / total for place, weight in row.items()}


def _linear(distance: float) -> float:
    return max(1 - abs(distance), 0.0)


def _cubic(distance: float, a: float) -> float:
    """Return the value of Keys' cubic curve, whose slope one step from the centre is `a`."""
    x = abs(distance)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _cubic_half(distance: float) -> float:
    return _cubic(distance, -0.5)
