"""Bits of integers, and tests of the bits of floats."""

import numpy as np
import pytest

from tests.ops.operands import FLOATS
from tests.ops.test_division import INTEGERS, pairs, whole_numbers
from wgpu_backend.dtypes import BF16, BOOL, F16, F32, I32
from wgpu_backend.errors import DTypeError
from wgpu_backend.ml.context import Context

OPS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}
TOLD = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit}
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 0.5, 65504, -65504, 6e-8, -6e-8, 2**-14, -(2**-14),
     3e38, -3e38, 1e-3, -2049], "f4",
)  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_bits_of_integers_are_those_of_numpy(gpu, rng, name, dtype):
    a, b = whole_numbers(rng, dtype)
    with Context(gpu) as ctx:
        x, y = ctx.from_numpy(a, dtype), ctx.from_numpy(b, dtype)
        got = getattr(x, name)(y)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.numpy(), OPS[name](a, b))
        np.testing.assert_array_equal(x.bitwise_not().numpy(), ~a)


def test_truth_values_have_one_bit(executor, rng):
    a, b = rng.integers(0, 2, (2, 257)) > 0
    with Context(executor) as ctx:
        x, y = ctx.from_numpy(a), ctx.from_numpy(b)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
            np.testing.assert_array_equal(getattr(x, name)(y).numpy(), OPS[name](a, b))
        np.testing.assert_array_equal(x.bitwise_not().numpy(), ~a)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", TOLD)
def test_what_bits_tell_is_what_numpy_says(executor, rng, name, dtype):
    for shape in [(), (3,), (33,), (3, 0)]:
        values = rng.choice(SPECIAL, shape).astype("f4")
        with Context(executor) as ctx:
            x = ctx.from_numpy(values).cast(dtype=dtype)
            got = getattr(x, name)()
            assert got.dtype == BOOL
            np.testing.assert_array_equal(got.numpy(), TOLD[name](x.cast(dtype=F32).numpy()))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_signs_are_copied_to_zeros_and_nan(executor, dtype):
    a, b = pairs(SPECIAL)
    with Context(executor) as ctx:
        x, y = (ctx.from_numpy(v).cast(dtype=dtype) for v in (a, b))
        # On the host: a device may lose the sign of an f16 that is not a number, once it widens it.
        got = x.copysign(y).numpy()
        want = np.copysign(x.cast(dtype=F32).numpy(), y.cast(dtype=F32).numpy())
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_neighbours_are_those_of_the_type(gpu, rng, dtype):
    word = np.dtype(f"u{dtype.block_nbytes}")
    drawn = rng.integers(0, np.iinfo(word).max, (2, 9999), word, endpoint=True).view(dtype.numpy)
    a, b = pairs(SPECIAL.clip(-65504, 65504).astype(dtype.numpy) if dtype == F16 else SPECIAL)
    a, b = (np.concatenate([v, w]) for v, w in zip((a, b), drawn, strict=True))
    with np.errstate(all="ignore"):
        want = np.nextafter(a, b)
    # Devices may take f32 below normal ones as zero; f16 are all normal f32.
    least = 2.0**-126 if dtype == F32 else 0
    shown = ~(np.abs(a) < least) & ~(np.abs(want) < least) & ~(np.abs(b) < least)
    with Context(gpu) as ctx:
        got = ctx.from_numpy(a, dtype).nextafter(ctx.from_numpy(b, dtype)).numpy()
    np.testing.assert_array_equal(got[shown], want[shown])


def test_operators_of_integers_are_those_of_python(executor):
    with Context(executor) as ctx:
        x = ctx.from_ints([-7, 6, 5])
        assert (x & 3).tolist() == [1, 2, 1]
        assert (8 | x ^ 1).tolist() == [-8 | 8, 15, 12]
        assert (~x).tolist() == [6, -7, -6]
        assert (x << 2 >> 1).tolist() == [-14, 12, 10]
        assert (1 << ctx.from_ints([0, 5, 31])).tolist() == [1, 32, -(2**31)]
        assert (-100 >> abs(x)).tolist() == [-1, -2, -4]
        assert (x // 4).tolist() == [-2, 1, 1]
        assert (x % 4).tolist() == [1, 2, 1]
        assert (20 // x).tolist() == [-3, 3, 4]
        assert (20 % x).tolist() == [-1, 2, 0]
        assert (~(x > 5) & (x > 0)).tolist() == [False, False, True]


def test_other_types_are_refused(full):
    with Context(full) as ctx:
        x, ids = ctx.zeros(3), ctx.zeros(3, dtype=I32)
        for name, operands, message in (
            ("bitwise_and", (x, x), "a is f32, needs i32"),
            ("left_shift", (ids.equal(0),) * 2, "a is bool, needs i32"),
            ("bitwise_or", (ids, ids.equal(0)), "b is bool, needs i32"),
            ("isnan", (ids,), "x is i32, needs f32"),
            ("nextafter", (ctx.zeros(3, dtype=BF16), x), "a is bf16, needs f32, f16"),
            ("nextafter", (x, ctx.zeros(3, dtype=F16)), "b is f16, needs f32"),
        ):
            with pytest.raises(DTypeError, match=f"{name}: {message}"):
                getattr(operands[0], name)(*operands[1:])
