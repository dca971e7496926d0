import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor
from wgpu_backend.dtypes import BOOL, F32, F64, I8, I32, U16, U32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

SUMS = 1e-11


@pytest.mark.parametrize("cols", [262144, 1 << 20, (1 << 20) + 1])
def test_cumsum_of_long_rows(any_executor, check, rng, cols):
    x = rng.standard_normal((1, cols), "f4") + 0.5
    check(any_executor, lambda ctx: tensor(ctx, x).cumsum(), limit=SUMS)


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


def test_cumsum_refuses(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"cumsum: axis 1, .* has axes -1 to 0"):
            ctx.zeros(3).cumsum(1)
        with pytest.raises(ShapeError, match="0 axes, needs 1 to 8"):
            ctx.zeros().cumsum()
        with pytest.raises(DTypeError, match="cumsum: x is f64, needs"):
            ctx.zeros(3, dtype=F64).cumsum()
        with pytest.raises(DTypeError, match="logcumsumexp: x is i32, needs"):
            ctx.zeros(3, dtype=I32).logcumsumexp()


SCANS = {
    "cumsum": np.add,
    "cumprod": np.multiply,
    "cummax": np.maximum,
    "cummin": np.minimum,
    "logcumsumexp": np.logaddexp,
}
FIRST = {"cumsum": 0, "cumprod": 1, "cummax": -np.inf, "cummin": np.inf, "logcumsumexp": -np.inf}


def scanned(name, x, axis, reverse, exclusive):
    """The same in NumPy, exclusive ones of floats."""
    x = np.flip(x, axis) if reverse else x
    if exclusive:
        ahead = np.full(np.take(x, [0], axis).shape, FIRST[name], x.dtype)
        x = np.concatenate([ahead, np.delete(x, -1, axis)], axis)
    found = SCANS[name].accumulate(x, axis)
    return np.flip(found, axis) if reverse else found


@pytest.mark.parametrize(("reverse", "exclusive"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("name", SCANS)
def test_scans_along_any_axis(any_executor, rng, name, reverse, exclusive):
    x = rng.uniform(0.5, 1.5, (3, 5, 33)).astype("f4")
    how = {"reverse": bool(reverse), "exclusive": bool(exclusive)}
    with Context(any_executor) as ctx:
        for axis in (0, 1, -1):
            got = getattr(LAYOUTS["permuted"](ctx, x), name)(axis, **how).numpy()
            want = scanned(name, x.astype("f8"), axis, reverse, exclusive)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dtype", [F32, U32], ids=str)
@pytest.mark.parametrize("cols", [1, 257, 1024, 1025, 5000])
@pytest.mark.parametrize("name", SCANS)
def test_scans_of_odd_lengths(any_executor, check, rng, name, cols, dtype, exclusive):
    if name == "logcumsumexp" and dtype not in FLOATS:
        return
    x = rng.uniform(0.99, 1.01, (3, cols)) if dtype in FLOATS else rng.integers(0, 2**31, (3, cols))
    x = x.astype("f4") if dtype in FLOATS else x

    def build(ctx):
        return getattr(tensor(ctx, x, dtype), name)(exclusive=exclusive)

    # A product of 5,000 factors is rounded as often.
    exact = dtype not in FLOATS or name in ("cummax", "cummin")
    check(any_executor, build, limit=0 if exact else 1e-10)


@pytest.mark.parametrize("name", SCANS)
def test_scans_of_what_is_not_finite(any_executor, name):
    x = np.linspace(0.9, 1.1, 6000, dtype="f4").reshape(2, 3000)
    x[0, 20], x[0, 1500], x[1, 30], x[1, 2500] = np.inf, -np.inf, np.nan, 7
    with Context(any_executor) as ctx:
        got = getattr(tensor(ctx, x), name)().numpy()
    with np.errstate(invalid="ignore"):
        want = SCANS[name].accumulate(x.astype("f8"), 1)
    np.testing.assert_allclose(got, want.astype("f4"), rtol=1e-4)


def test_ends_of_integers_come_before_all(executor):
    x = np.array([5, -(2**31), 2**31 - 1])
    with Context(executor) as ctx:
        whole, more = ctx.from_numpy(x, I32), ctx.from_numpy(x + 2**31, U32)
        low, high = -(2**31), 2**31 - 1
        assert whole.cummax(exclusive=True).tolist() == [low, 5, 5]
        assert whole.cummin(exclusive=True).tolist() == [high, 5, low]
        assert more.cummax(exclusive=True).tolist() == [0, 5 + 2**31, 5 + 2**31]
        assert more.cummin(exclusive=True).tolist() == [2**32 - 1, 5 + 2**31, 0]


@pytest.mark.parametrize("dtype", [I8, U16, BOOL], ids=str)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_scans_of_narrow_integers(gpu, rng, name, dtype):
    x = rng.integers(0, 2 if dtype == BOOL else 127, (2, 1300))
    with Context(gpu) as ctx:
        found = getattr(ctx.from_numpy(x, dtype), name)()
        wide = I32 if dtype == I8 else U32
        assert found.dtype == (dtype if name in ("cummax", "cummin") else wide)
        want = SCANS[name].accumulate(x, 1, dtype="i4" if dtype == I8 else "u4")
        np.testing.assert_array_equal(found.numpy(), want)
        first = getattr(ctx.from_numpy(x, dtype), name)(exclusive=True).numpy()[:, 0]
    ends = (0, 1) if dtype == BOOL else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    np.testing.assert_array_equal(
        first, {"cumsum": 0, "cumprod": 1, "cummax": ends[0], "cummin": ends[1]}[name]
    )


@pytest.mark.parametrize("cols", [4, 1024, 2500])
def test_sums_keep_the_sign_of_zero(any_executor, cols):
    x = np.full((2, cols), -0.0, "f4")
    x[1, -1] = 0.0
    with Context(any_executor) as ctx:
        found = tensor(ctx, x).cumsum().numpy()
        begun = tensor(ctx, x).cumsum(exclusive=True).numpy()
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.cumsum(x, 1)))
    assert not np.signbit(begun).any()  # they begin with 0.0
