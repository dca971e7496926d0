"""`floor_divide` and `remainder` of floats and integers, with NumPy's signs and ends.

But for an infinity by a number, whose quotient is infinite.
"""

import numpy as np
import pytest

from tests.ops.operands import FLOATS, tensor
from wgpu_backend.dtypes import F32, I8, I16, I32, I64, U8, U16, U32, U64
from wgpu_backend.ml.context import Context

INTEGERS = (I32, U32, I16, U16, I8, U8, I64, U64)
OPS = {"floor_divide": np.floor_divide, "remainder": np.remainder}
SPECIAL = np.array(
    [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.1, -0.3, 3, -7, 2e-38, 1e-20, -1e30, 3e38], "f4"
)


def pairs(values):
    """Each value beside each."""
    return [v.reshape(-1).copy() for v in np.meshgrid(values, values)]


def whole_numbers(rng, dtype, count=999):
    """Pairs of integers over their range, and of both ends and small ones."""
    info = np.iinfo(dtype.numpy)
    small = [v for v in (-9, -3, -1, 0, 1, 2, 7, 31, 33) if v >= info.min]
    a, b = pairs(np.array([info.min, info.min + 1, *small, info.max - 1, info.max], dtype.numpy))
    drawn = rng.integers(info.min, info.max, (2, count), dtype.numpy, endpoint=True)
    drawn >>= rng.integers(0, info.bits - 1, drawn.shape).astype(dtype.numpy)  # of all sizes
    return np.concatenate([a, drawn[0]]), np.concatenate([b, drawn[1]])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_integers_are_divided_as_in_numpy(gpu, rng, name, dtype):
    a, b = whole_numbers(rng, dtype)
    with Context(gpu) as ctx, np.errstate(all="ignore"):
        got = getattr(ctx.from_numpy(a, dtype), name)(ctx.from_numpy(b, dtype))
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.numpy(), OPS[name](a, b))


def test_remainders_of_floats_are_exact(gpu, rng):
    bits = rng.integers(0, 2**32, (2, 20_000), np.uint32).view("f4")
    sizes = rng.uniform(-100, 100, (2, 4000)).astype("f4")
    a, b = (np.concatenate(parts) for parts in zip(pairs(SPECIAL), bits, sizes, strict=True))
    # What is below normal numbers may be taken as zero, as a part of the sum with b too.
    sound = [~(np.abs(v) < 2.0**-100) | (v == 0) for v in (a, b)]
    a, b = a[sound[0] & sound[1]], b[sound[0] & sound[1]]
    with Context(gpu) as ctx, np.errstate(all="ignore"):
        got = ctx.from_numpy(a).remainder(ctx.from_numpy(b)).numpy()
        want = np.remainder(a, b)
    shown = ~(np.abs(want) < 2.0**-126) | (want == 0)
    np.testing.assert_array_equal(got[shown], want[shown])
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quotients_of_floats_are_whole_numbers_of_numpy(gpu, rng, dtype):
    a, b = pairs(SPECIAL)
    a = np.concatenate([a, rng.uniform(-100, 100, 4000)]).astype("f4")
    b = np.concatenate([b, rng.uniform(-9, 9, 4000)]).astype("f4")
    with Context(gpu) as ctx, np.errstate(all="ignore"):
        x, y = (ctx.from_numpy(v).cast(dtype=dtype) for v in (a, b))
        a, b = (v.cast(dtype=F32).numpy() for v in (x, y))
        want = np.floor_divide(a, b)
        # The array API standard and MLX have an infinity there, NumPy has NaN.
        want = np.where(np.isinf(a) & np.isfinite(b), np.copysign(a, a * np.copysign(1, b)), want)
        want = ctx.from_numpy(want).cast(dtype=dtype).cast(dtype=F32).numpy()
        got = x.floor_divide(y).cast(dtype=F32).numpy()
    # From 2²³ on a quotient may be some units off.
    np.testing.assert_allclose(got, want, rtol=3 * 2.0**-23 if dtype == F32 else 2.0**-7)
    near = np.abs(want) < (2.0**22 if dtype == F32 else 2.0**7)
    np.testing.assert_array_equal(got[near], want[near])
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def test_quotients_by_the_largest_numbers_are_close(gpu):
    """The inverse of what is beyond 2¹²⁶ is below normal numbers, which a device takes as zero."""
    ends = np.float32([2.0**125, 2.0**126, 1.5 * 2.0**126, 2.0**127, np.finfo("f4").max])
    a, b = pairs(np.concatenate([ends, -ends, np.float32([1, 0, 3e37, np.inf, np.nan])]))
    with Context(gpu) as ctx, np.errstate(all="ignore"):
        x, y = ctx.from_numpy(a), ctx.from_numpy(b)
        # WGSL's 2.5 units, and results below normal numbers.
        np.testing.assert_allclose((x / y).numpy(), a / b, rtol=2.5 * 2.0**-23, atol=2.0**-126)
        curve = np.where(np.isinf(a), np.nan, a / (1 + np.abs(a.astype("f8"))))
        np.testing.assert_allclose(x.softsign().numpy(), curve, rtol=1e-6)


def test_numbers_become_constants_of_the_type(executor):
    with Context(executor) as ctx:
        assert tensor(ctx, np.array([-7, 7]), I8).remainder(3).tolist() == [2, 1]
        assert ctx.from_floats([-7, 7]).floor_divide(2).tolist() == [-4, 3]
