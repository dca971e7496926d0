import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import I32, U32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.reduce.arguments import argmax, argmin

ARGUMENTS = {"argmax": (argmax, np.argmax), "argmin": (argmin, np.argmin)}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_nan_comes_first_and_ends_are_numbers(gpu, name):
    ours, numpys = ARGUMENTS[name]
    x = np.zeros((4, 70), "f4")
    x[0, 9], x[0, 65], x[1, 3], x[1, 68], x[2] = np.nan, np.nan, np.inf, -np.inf, np.inf
    whole = np.full((2, 70), -(2**31))
    whole[1, 5:] = 2**31 - 1
    with Context(gpu) as ctx:
        np.testing.assert_array_equal(ours(tensor(ctx, x), -1).numpy(), numpys(x, -1))
        np.testing.assert_array_equal(ours(tensor(ctx, x), 0).numpy(), numpys(x, 0))
        got = ours(ctx.from_numpy(whole, I32), -1).numpy()
        np.testing.assert_array_equal(got, numpys(whole, -1))
        got = ours(ctx.from_numpy(whole + 2**31, U32), -1).numpy()
        np.testing.assert_array_equal(got, numpys(whole, -1))


def test_axes_stay_and_more_than_four_are_kept(gpu, rng):
    x = rng.standard_normal((2, 3, 2, 3, 2, 5), "f4")
    with Context(gpu) as ctx:
        turned = tensor(ctx, x).permute(5, 4, 3, 2, 1, 0)
        for axis in (None, 2):
            got = argmax(turned, axis, keep_dims=True).numpy()
            np.testing.assert_array_equal(got, np.argmax(x.T, axis, keepdims=True))


def test_refusals(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"argmax: x is \(0, 3\), axis 0 has 0 values"):
            argmax(ctx.zeros(0, 3), 0)
        with pytest.raises(ShapeError, match=r"argmin: axis 2, .* axes -2 to 1"):
            argmin(ctx.zeros(2, 3), 2)
        with pytest.raises(DTypeError, match="argmax: x is f64, needs"):
            argmax(ctx.zeros(3, dtype="f64"), 0)
        assert argmin(ctx.zeros(0, 3), 1).spec.dtype == I32
