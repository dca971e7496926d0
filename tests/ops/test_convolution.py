import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor
from wgpu_backend.dtypes import BF16, F16, F32, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

# Sums in f32 on both sides, in another order.
LIMIT = 1e-10


def values(rng, *shape):
    return rng.standard_normal(shape).astype("f4")


@pytest.mark.parametrize("channels", [1, 3, 4, 33, 64])
@pytest.mark.parametrize("outputs", [1, 5, 32])
def test_pixels_meet_a_kernel(any_executor, check, rng, channels, outputs):
    x, w = values(rng, 2, 9, 11, channels), values(rng, outputs, 3, 2, channels)
    check(any_executor, lambda ctx: tensor(ctx, x).conv2d(tensor(ctx, w)), limit=LIMIT)


@pytest.mark.parametrize("channels", [6, 8])
@pytest.mark.parametrize(
    ("strides", "paddings", "dilations"),
    [
        ((2, 1), (0, 0), (1, 1)),
        ((1, 3), (2, 1), (1, 1)),
        ((1, 1), (0, 5), (3, 2)),
        ((2, 2), (3, 4), (2, 3)),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_strides_paddings_dilations_and_groups(
    executor, check, rng, channels, strides, paddings, dilations, groups
):
    x, w = values(rng, 1, 9, 11, channels), values(rng, 6, 3, 2, channels // groups)
    how = (strides, paddings, dilations, groups)
    check(executor, lambda ctx: tensor(ctx, x).conv2d(tensor(ctx, w), *how), limit=LIMIT)


@pytest.mark.parametrize(("outputs", "groups"), [(8, 8), (16, 8), (12, 4), (10, 2)])
def test_every_group_sees_its_own_channels(any_executor, check, rng, outputs, groups):
    x, w = values(rng, 2, 6, 7, 16), values(rng, outputs, 3, 3, 16 // groups)
    check(
        any_executor,
        lambda ctx: tensor(ctx, x).conv2d(tensor(ctx, w), (1, 1), (1, 1), groups=groups),
        limit=LIMIT,
    )


@pytest.mark.parametrize(("x_type", "w_type"), [(F32, F16), (F16, F32), (BF16, BF16)], ids=str)
@pytest.mark.parametrize("channels", [3, 8])
def test_operands_of_two_types(executor, check, rng, channels, x_type, w_type):
    x, w = values(rng, 2, 5, 6, channels), values(rng, 5, 2, 3, channels)
    check(
        executor,
        lambda ctx: LAYOUTS["permuted"](ctx, x, x_type).conv2d(LAYOUTS["sliced"](ctx, w, w_type)),
        limit=LIMIT,
    )


def test_a_weight_of_a_model_serves_as_it_lies(executor, check, rng):
    from tests.ops.operands import weight

    x, w = values(rng, 1, 5, 6, 8), values(rng, 5, 2 * 3 * 8)

    def build(ctx):
        held = weight(ctx._executor, 5, 48, F32, w.tobytes())
        return tensor(ctx, x).conv2d(held.reshape(5, 2, 3, 8))

    check(executor, build, limit=LIMIT)


def test_channels_before_pixels_are_a_permutation_away(full, rng):
    # The call of ml: a kernel (oc, ic, kh, kw), an input (n, ic, h, w), strides and so on reversed.
    x, w = values(rng, 1, 4, 7, 8), values(rng, 3, 4, 2, 3)
    with Context(full) as ctx:
        y = tensor(ctx, x).permute(0, 2, 3, 1).conv2d(tensor(ctx, w).permute(0, 2, 3, 1), (2, 1))
        got = y.permute(0, 3, 1, 2).numpy()
    want = np.zeros((1, 3, 3, 6), "f4")
    for h in range(3):
        for c in range(6):
            want[:, :, h, c] = np.einsum("nchw,ochw->no", x[:, :, 2 * h : 2 * h + 2, c : c + 3], w)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize(
    "how",
    [
        (),
        ((2, 1, 3), (1, 0, 2)),
        ((1, 1, 1), (2, 2, 2), (2, 3, 1)),
        ((1, 1, 1), (0, 1, 0), (1, 1, 1), 1),
    ],
    ids=str,
)
def test_volumes_meet_a_kernel(executor, check, rng, how, channels):
    x, w = values(rng, 2, 5, 6, 7, channels), values(rng, 5, 2, 2, 3, channels)
    check(executor, lambda ctx: tensor(ctx, x).conv3d(tensor(ctx, w), *how), limit=LIMIT)


def test_volumes_may_be_permuted(executor, check, rng):
    # The call of ml for a patch embedding: (n, c, d, h, w) and (oc, c, kd, kh, kw).
    x, w = values(rng, 1, 4, 2, 8, 8), values(rng, 5, 4, 2, 4, 4)
    to_last = (0, 2, 3, 4, 1)
    check(
        executor,
        lambda ctx: (
            tensor(ctx, x).permute(*to_last).conv3d(tensor(ctx, w).permute(*to_last), (2, 4, 4))
        ),
        limit=LIMIT,
    )


@pytest.mark.parametrize("how", [(), (2,), (1, 3), (1, 4, 2), (3, 2, 1)], ids=str)
@pytest.mark.parametrize("channels", [1, 5, 32])
def test_each_channel_has_a_kernel_of_its_own(any_executor, check, rng, channels, how):
    x, w = values(rng, 2, 17, channels), values(rng, channels, 4)
    check(any_executor, lambda ctx: tensor(ctx, x).conv1d_dw(tensor(ctx, w), *how), limit=LIMIT)


@pytest.mark.parametrize(
    "how", [((3, 2),), ((3, 2), (2, 1), (1, 2), (1, 2)), ((1, 1), (3, 3))], ids=str
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_columns_hold_what_a_pixel_looks_at(executor, check, rng, dtype, how):
    x = values(rng, 2, 9, 11, 3)
    check(executor, lambda ctx: LAYOUTS["sliced"](ctx, x, dtype).im2col(*how), limit=0)


def test_columns_times_weights_are_the_convolution(full, rng):
    x, w = values(rng, 2, 6, 7, 4), values(rng, 5, 3, 2, 4)
    how = ((1, 2), (1, 1), (2, 1))
    with Context(full) as ctx:
        at = LAYOUTS["permuted"](ctx, x)
        got = tensor(ctx, w).reshape(5, -1).mulmat(at.im2col((3, 2), *how)).numpy()
        want = at.conv2d(tensor(ctx, w), *how).numpy()
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_what_lies_beyond_the_border_is_not_read(executor, rng):
    x, w = np.full((1, 6, 6, 4), np.nan, "f4"), values(rng, 3, 3, 3, 4)
    x[:, 2:4, 2:4] = 1
    with Context(executor) as ctx:
        window = tensor(ctx, x).slice(1, 2, 4).slice(2, 2, 4)
        got = window.conv2d(tensor(ctx, w), (1, 1), (1, 1)).numpy()
    assert np.isfinite(got).all()


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        x = ctx.zeros(1, 5, 6, 8)
        for shape, how, message in [
            ((4, 3, 3, 7), {}, "x has 8 channels, weight needs 7 in each of 1 groups"),
            ((5, 3, 3, 4), {"groups": 2}, "5 outputs, not a multiple of 2 groups"),
            ((4, 6, 3, 8), {}, "kernel reaches over 6 values, padded height has 5"),
            ((4, 3, 4, 8), {"dilations": (1, 2)}, "reaches over 7 values, padded width has 6"),
            ((4, 3, 3, 8), {"strides": (0, 1)}, "along the height kernel 3, stride 0"),
            ((4, 3, 3, 8), {"strides": (1,)}, "1 strides, needs 2"),
            ((4, 3, 8), {}, "3 axes, needs 4 to 4"),
        ]:
            with pytest.raises(ShapeError, match=message):
                x.conv2d(ctx.zeros(*shape), **how)
        with pytest.raises(ShapeError, match="conv1d_dw: x has 8 channels, weight has 7"):
            ctx.zeros(1, 9, 8).conv1d_dw(ctx.zeros(7, 3))
        with pytest.raises(DTypeError, match="convolve: weight is i32"):
            x.conv2d(ctx.zeros(4, 3, 3, 8, dtype=I32))
        with pytest.raises(ShapeError, match="kernel reaches over 9 values, padded height has 7"):
            x.im2col((9, 3), paddings=(1, 1))
