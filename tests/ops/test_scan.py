import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor
from wgpu_backend.dtypes import F32, I32, U32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

SUMS = 1e-11


@pytest.mark.parametrize("cols", [1, 3, 33, 257, 1023, 1024, 1025, 5000])
def test_cumsum_of_odd_lengths(any_executor, check, rng, cols):
    x = rng.standard_normal((3, cols), "f4") + 0.1
    check(any_executor, lambda ctx: tensor(ctx, x).cumsum(), limit=SUMS)


@pytest.mark.parametrize("cols", [262144, 1 << 20, (1 << 20) + 1])
def test_cumsum_of_long_rows(any_executor, check, rng, cols):
    x = rng.standard_normal((1, cols), "f4") + 0.5
    check(any_executor, lambda ctx: tensor(ctx, x).cumsum(), limit=SUMS)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum_of_views_along_any_axis(executor, check, rng, axis, layout, dtype):
    x = rng.standard_normal((3, 5, 9), "f4")
    check(executor, lambda ctx: LAYOUTS[layout](ctx, x, dtype).cumsum(axis), limit=SUMS)
    with Context(executor) as ctx:
        got = LAYOUTS[layout](ctx, x, F32).cumsum(axis).numpy()
    np.testing.assert_allclose(got, np.cumsum(x, axis), rtol=1e-4, atol=1e-5)


def test_cumsum_of_integers_is_exact(any_executor, rng):
    x = rng.integers(-(2**31), 2**31 - 1, (3, 3001)).astype("i4")
    with Context(any_executor) as ctx:
        got = tensor(ctx, x, I32).cumsum().numpy()
    np.testing.assert_array_equal(got, np.cumsum(x, 1, dtype="i4"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 700, 1023, 1024, 2500])
def test_what_is_not_finite_reaches_all_that_follows(any_executor, value, place):
    x = np.ones((1, 3000), "f4")
    x[0, place] = value
    x[0, 2900] = -value
    with Context(any_executor) as ctx:
        got = tensor(ctx, x).cumsum().numpy()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, np.cumsum(x, 1))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_nothing_sums_to_nothing(executor, check, shape):
    check(executor, lambda ctx: tensor(ctx, np.zeros(shape, "f4")).cumsum(), limit=0)


def test_cumsum_refuses(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"cumsum: axis 1, .* has axes -1 to 0"):
            ctx.zeros(3).cumsum(1)
        with pytest.raises(ShapeError, match="0 axes, needs 1 to 4"):
            ctx.zeros().cumsum()
        with pytest.raises(DTypeError, match="cumsum: x is u32, needs"):
            ctx.zeros(3, dtype=U32).cumsum()
