"""Casts and copies between all plain types, against NumPy's astype."""

import numpy as np
import pytest

from wgpu_backend import dtypes
from wgpu_backend.errors import DTypeError
from wgpu_backend.ml.context import Context

PLAIN = [d for d in dtypes.ALL if d.numpy is not None and d != dtypes.BF16]
REAL = [d for d in PLAIN if d != dtypes.COMPLEX64]
WIDE = [dtypes.I64, dtypes.U64, dtypes.F64, dtypes.COMPLEX64]


def small(dtype, shape, seed=0):
    """Values that every type holds exactly."""
    values = np.random.default_rng(seed).integers(0, 100, shape)
    return values.astype(dtype.numpy)


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
@pytest.mark.parametrize("shape", [(1,), (3, 33), (257,), (2, 3, 5, 7)])
def test_values_come_back_as_they_went(executor, dtype, shape) -> None:
    values = small(dtype, shape)
    with Context(executor) as context:
        tensor = context.from_numpy(values, dtype)
        np.testing.assert_array_equal(tensor.numpy(), values)
        np.testing.assert_array_equal(tensor.transpose().contiguous().numpy(), values.T)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_copies_keep_every_bit_of_wide_types(executor, dtype) -> None:
    words = np.random.default_rng(1).integers(0, 2**63, (33, 5), np.int64)
    if dtype in (dtypes.F64, dtypes.COMPLEX64):
        words &= 0x3FEF_FFFF_3FEF_FFFF  # no NaN
    values = words.view(dtype.numpy).reshape(33, 5)
    with Context(executor) as context:
        copied = context.from_numpy(values, dtype)[1::2, ::2].contiguous().numpy()
    np.testing.assert_array_equal(copied.view(np.int64), values[1::2, ::2].copy().view(np.int64))


@pytest.mark.parametrize("target", PLAIN, ids=str)
@pytest.mark.parametrize("source", REAL, ids=str)
def test_small_numbers_survive_every_cast(executor, source, target) -> None:
    values = small(source, (5, 33))
    with Context(executor) as context:
        found = context.from_numpy(values, source).permute(1, 0).cast(dtype=target).numpy()
    assert found.dtype == target.numpy
    np.testing.assert_array_equal(found, values.T.astype(target.numpy))


INTEGERS = [d for d in PLAIN if d.numpy.kind in "iu"]


@pytest.mark.parametrize("target", [dtypes.F32, dtypes.BOOL, *INTEGERS], ids=str)
@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integers_of_any_size_cast_as_in_numpy(executor, source, target) -> None:
    rng = np.random.default_rng(2)
    info = np.iinfo(source.numpy)
    bits = rng.integers(0, 8 * source.block_nbytes - 1, 500)
    values = rng.integers(info.min, info.max, 500, source.numpy) >> bits.astype(source.numpy)
    values[:4] = info.min, info.max, 0, info.max // 2 + 1
    with Context(executor) as context:
        found = context.from_numpy(values, source).cast(dtype=target).numpy()
    np.testing.assert_array_equal(found, values.astype(target.numpy))


@pytest.mark.parametrize("source", [dtypes.F32, dtypes.F16, dtypes.BF16, dtypes.F64], ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_floats_beyond_integers_become_the_nearest(executor, source, target) -> None:
    powers = 2.0 ** np.array([7, 8, 15, 16, 31, 32, 63, 64, 100])
    near = np.concatenate([powers, powers * (1 - 2**-8), [0.99, 1.5, 300, 0]]).astype(np.float32)
    values = np.concatenate([near, -near, [np.nan, -np.nan, np.inf, -np.inf]]).astype(np.float32)
    info = np.iinfo(target.numpy)

    with Context(executor) as context, np.errstate(over="ignore"):
        tensor = context.from_numpy(values).cast(dtype=source)
        held = tensor.cast(dtype=dtypes.F32).floats()
        found = tensor.cast(dtype=target).ints()

    bounded = [0.0 if np.isnan(v) else max(min(v, 1e30), -1e30) for v in held]
    assert found == [max(info.min, min(info.max, int(v))) for v in bounded]


def test_everything_but_zero_is_true(executor) -> None:
    values = np.array([0.0, -0.0, np.nan, np.inf, 1e-45, -1e-40, 0.5], np.float32)
    with Context(executor) as context:
        found = context.from_numpy(values).cast(dtype=dtypes.BOOL).numpy()
        wide = context.from_numpy([0, 1 << 32, -1 << 63], dtypes.I64).cast(dtype=dtypes.BOOL)
        assert wide.numpy().tolist() == [False, True, True]
    assert found.tolist() == [False, False, True, True, True, True, True]


def test_floats_lose_their_fraction(executor) -> None:
    values = np.array([0.0, -0.5, 0.99, 1.5, -1.5, 3e9, -3e9, 1e12, -1e12, 16777217.0], np.float32)
    with Context(executor) as context:
        tensor = context.from_numpy(values)
        np.testing.assert_array_equal(
            tensor.cast(dtype=dtypes.I64).numpy(), values.astype(np.int64)
        )
        np.testing.assert_array_equal(
            tensor.slice(0, 0, 4).cast(dtype=dtypes.U64).numpy(), [0, 0, 0, 1]
        )


def test_doubles_become_the_nearest_float(executor) -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal(2000) * 10.0 ** rng.integers(-30, 30, 2000)
    values[:8] = [0.0, -0.0, np.inf, -np.inf, 1e300, -1e300, 1 + 2**-24, 1 + 3 * 2**-24]
    with Context(executor) as context, np.errstate(over="ignore"):
        single = context.from_numpy(values, dtypes.F64).cast(dtype=dtypes.F32)
        np.testing.assert_array_equal(single.numpy(), values.astype(np.float32))
        back = single.cast(dtype=dtypes.F64).numpy()
        np.testing.assert_array_equal(back, values.astype(np.float32).astype(np.float64))


def test_what_loses_meaning_is_refused(executor) -> None:
    with Context(executor) as context:
        complex_values = context.from_numpy([1 + 2j], dtypes.COMPLEX64)
        with pytest.raises(DTypeError, match="complex64 to f32"):
            complex_values.cast(dtype=dtypes.F32)
        with pytest.raises(DTypeError, match="i64, needs f32"):
            context.from_numpy([1], dtypes.I64).silu()
        with pytest.raises(DTypeError, match="complex64, needs f32"):
            complex_values + complex_values
