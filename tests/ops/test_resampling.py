import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

LIMIT = 1e-12


@pytest.mark.parametrize("how", [(1, 1), (2, 2), (3, 2, 1), (3, 1, 2), (5, 3, 4)], ids=str)
@pytest.mark.parametrize("shape", [(7, 9), (3, 8, 8), (2, 3, 33, 5)], ids=str)
def test_windows_are_averaged(any_executor, check, rng, shape, how):
    x = rng.standard_normal(shape, "f4")
    check(any_executor, lambda ctx: tensor(ctx, x).avg_pool2d(*how), limit=LIMIT)


def test_zeros_around_an_image_count(full):
    with Context(full) as ctx:
        x = tensor(ctx, np.ones((2, 2), "f4"))
        np.testing.assert_allclose(x.avg_pool2d(2, 2, 1).numpy(), np.full((2, 2), 0.25))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    ("have", "want"),
    [
        ((7, 9), (14, 18)),
        ((7, 9), (3, 4)),
        ((1, 1), (5, 3)),
        ((5, 3), (1, 1)),
        ((2, 33, 5), (3, 32, 257)),
        ((2, 3, 4, 5), (4, 3, 9, 5)),
        ((2, 3, 4, 5), (1, 7, 2, 11)),
    ],
    ids=str,
)
def test_any_size_from_any_other(any_executor, check, rng, have, want, mode):
    x = rng.standard_normal(have, "f4")
    check(any_executor, lambda ctx: tensor(ctx, x).interpolate(want, mode), limit=LIMIT)


def test_centres_of_pixels_are_half_a_pixel_in(full):
    with Context(full) as ctx:
        x = tensor(ctx, np.array([[0, 1], [2, 3]], "f4"))
        got = x.interpolate((2, 4), "bilinear").numpy()
    np.testing.assert_allclose(got, [[0, 0.25, 0.75, 1], [2, 2.25, 2.75, 3]])


def test_the_same_size_is_the_same_image(executor, rng):
    x = rng.standard_normal((3, 31, 33), "f4")
    with Context(executor) as ctx:
        for mode in ("nearest", "bilinear"):
            np.testing.assert_array_equal(tensor(ctx, x).interpolate(x.shape, mode).numpy(), x)


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        x = ctx.zeros(2, 5, 6)
        with pytest.raises(ShapeError, match="a window of 8, the padded image is 7 by 8"):
            x.avg_pool2d(8, 1, 1)
        with pytest.raises(ShapeError, match="window 2, step 0, padding 0"):
            x.avg_pool2d(2, 0)
        with pytest.raises(ShapeError, match=r"x is \(2, 5, 6\), needs as many axes as \(5, 6\)"):
            x.interpolate((5, 6))
        with pytest.raises(ShapeError, match="needs axes of 1 to 32768 values"):
            x.interpolate((2, 0, 6))
        with pytest.raises(ShapeError, match="mode is 'cubic', needs 'nearest' or 'bilinear'"):
            x.interpolate((2, 5, 6), "cubic")
        with pytest.raises(DTypeError, match="interpolate: x is i32"):
            ctx.zeros(5, 6, dtype=I32).interpolate((5, 6))
