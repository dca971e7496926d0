"""Transposed convolutions, 1-D convolutions, and padding that differs between sides."""

import itertools

import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.testing import nmse

# Sums in f32 on both sides, in another order.
LIMIT = 1e-10
HOW = [
    ((1, 1), (0, 0), (1, 1), (0, 0)),
    ((2, 3), (1, 0), (1, 2), (1, 2)),
    ((1, 2), (3, 2), (2, 1), (1, 0)),
    ((3, 2), ((0, 2), (4, 0)), (1, 1), (0, 1)),
]


def scattered(x, w, strides, paddings, dilations, more, groups):
    """Each value times the kernel, added where it belongs: the definition, not the gather."""
    n, h, width, _ = x.shape
    o, kh, kw, inner = w.shape
    sides = [(p, p) if isinstance(p, int) else p for p in paddings]
    full = [
        (e - 1) * s + d * (k - 1) + 1 + m
        for e, s, d, k, m in zip((h, width), strides, dilations, (kh, kw), more, strict=True)
    ]
    y = np.zeros((n, *full, o))
    for i, j, a, b in itertools.product(*map(range, (h, width, kh, kw))):
        at = (i * strides[0] + a * dilations[0], j * strides[1] + b * dilations[1])
        for g in range(groups):
            rows = slice(g * o // groups, (g + 1) * o // groups)
            part = x[:, i, j, g * inner : (g + 1) * inner].astype("f8")
            y[:, at[0], at[1], rows] += part @ w[rows, a, b].T
    (top, bottom), (left, right) = sides
    return y[:, top : full[0] - bottom, left : full[1] - right]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels", [6, 8])
def test_values_are_spread_over_pixels(any_executor, rng, how, groups, channels):
    x = rng.standard_normal((2, 3, 5, channels), "f4")
    w = rng.standard_normal((4, 3, 2, channels // groups), "f4")
    with Context(any_executor) as ctx:
        got = tensor(ctx, x).conv_transpose2d(tensor(ctx, w), *how, groups=groups).numpy()
    assert nmse(got, scattered(x, w, *how, groups=groups)) <= LIMIT


@pytest.mark.parametrize("channels", [3, 8])
def test_fewer_and_more_axes(executor, check, rng, channels):
    x, w = rng.standard_normal((2, 33, channels), "f4"), rng.standard_normal((5, 4, channels), "f4")
    check(
        executor,
        lambda ctx: tensor(ctx, x).conv_transpose1d(tensor(ctx, w), 3, (1, 2), 2, 1),
        limit=LIMIT,
    )
    check(
        executor,
        lambda ctx: tensor(ctx, x).conv1d(tensor(ctx, w), 2, (3, 0), 2),
        limit=LIMIT,
    )
    v = rng.standard_normal((1, 3, 2, 5, channels), "f4")
    k = rng.standard_normal((3, 2, 3, 1, channels), "f4")
    check(
        executor,
        lambda ctx: tensor(ctx, v).conv_transpose3d(
            tensor(ctx, k), (2, 1, 3), (1, 0, (0, 1)), (1, 2, 1), (1, 0, 2)
        ),
        limit=LIMIT,
    )


@pytest.mark.parametrize("channels", [6, 8])
@pytest.mark.parametrize("paddings", [((0, 1), (0, 1)), ((2, 0), 1)], ids=str)
def test_sides_may_be_padded_differently(any_executor, check, rng, channels, paddings):
    x, w = (rng.standard_normal(s, "f4") for s in ((2, 7, 9, channels), (5, 3, 3, channels)))
    check(
        any_executor,
        lambda ctx: tensor(ctx, x).conv2d(tensor(ctx, w), (2, 2), paddings),
        limit=LIMIT,
    )
    zeros = [(0, 0), *((p, p) if isinstance(p, int) else p for p in paddings), (0, 0)]
    with Context(any_executor) as ctx:
        got = tensor(ctx, x).conv2d(tensor(ctx, w), (2, 2), paddings).numpy()
        want = tensor(ctx, np.pad(x, zeros)).conv2d(tensor(ctx, w), (2, 2)).numpy()
        columns = tensor(ctx, x).im2col((3, 3), (2, 2), paddings).numpy()
        wide = tensor(ctx, np.pad(x, zeros)).im2col((3, 3), (2, 2)).numpy()
    assert nmse(got, want) <= LIMIT
    np.testing.assert_array_equal(columns, wide)


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        x, w = ctx.zeros(1, 3, 4, 8), ctx.zeros(4, 3, 3, 8)
        for given, message in [
            (((1,),), "1 strides, needs 2"),
            (((0, 1),), "along the height kernel 3, stride 0"),
            (((2, 2), (0, -1)), r"along the width kernel 3, stride 2, padding \(-1, -1\)"),
            (((2, 2), (0, 0), (1, 1), (2, 0)), "height output padding 2, needs 0 to 1"),
            (((1, 1), (4, 0)), "the kernel reaches over 3 values, padded height has -1"),
            (((1, 1), (0, 0), (1, 1), (0, 0), 2), "x has 8 channels, weight needs 8 in each of 2"),
        ]:
            with pytest.raises(ShapeError, match=message):
                x.conv_transpose2d(w, *given)
        with pytest.raises(ShapeError, match="with 4 axes, needs 3 to 3"):
            x.conv_transpose1d(w)
        with pytest.raises(ShapeError, match="along the height padding -1, needs 0 or more"):
            x.conv2d(w, (1, 1), (-1, 0))
