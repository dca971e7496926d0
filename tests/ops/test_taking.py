import numpy as np
import pytest

from tests.ops.operands import LAYOUTS, tensor
from wgpu_backend.dtypes import F32, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context


def integers(rng, shape):
    return rng.integers(-200, 200, shape).astype("f4")


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_axes_is_numpys_take(executor, rng, axis):
    x, ids = integers(rng, (3, 5, 9)), np.array([2, 0, -1, 2, -3])
    with Context(executor) as ctx:
        got = LAYOUTS["permuted"](ctx, x, F32).take_axes(ctx.from_numpy(ids), axis).numpy()
    np.testing.assert_array_equal(got, np.take(x, ids, axis))


@pytest.mark.parametrize("ids_shape", [(), (1,), (33,), (3, 2), (2, 2, 2), (0,)], ids=str)
def test_the_axes_of_the_ids_take_the_axis_place(any_executor, check, rng, ids_shape):
    x, ids = integers(rng, (7, 257)), rng.integers(-7, 7, ids_shape)
    check(any_executor, lambda ctx: tensor(ctx, x).take_axes(ctx.from_numpy(ids), 0), limit=0)


@pytest.mark.parametrize("outside", [7, -8, 2**31 - 1, -(2**31)])
def test_ids_outside_take_zero(executor, check, rng, outside):
    x, ids = integers(rng, (7, 3)), np.array([0, outside, 6])
    check(executor, lambda ctx: tensor(ctx, x).take_axes(ctx.from_numpy(ids), 0), limit=0)
    along = np.array([[0, outside, 1]])
    check(executor, lambda ctx: tensor(ctx, x).take_along_axis(ctx.from_numpy(along), 0), limit=0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_along_axis_is_numpys(executor, rng, axis):
    x = integers(rng, (3, 5, 9))
    shape = list(x.shape)
    shape[axis] = 4
    ids = rng.integers(-x.shape[axis], x.shape[axis], shape)
    with Context(executor) as ctx:
        got = LAYOUTS["permuted"](ctx, x, F32)
        got = got.take_along_axis(LAYOUTS["sliced"](ctx, ids, I32), axis).numpy()
    np.testing.assert_array_equal(got, np.take_along_axis(x, ids, axis))


@pytest.mark.slow
def test_a_sort_is_argsort_and_take_along_axis(executor, rng):
    x = rng.standard_normal((3, 257), "f4")
    with Context(executor) as ctx:
        a = tensor(ctx, x)
        np.testing.assert_array_equal(a.take_along_axis(a.argsort(), -1).numpy(), np.sort(x, -1))


def test_taking_refuses(full):
    with Context(full) as ctx:
        x = ctx.zeros(2, 3)
        with pytest.raises(ShapeError, match=r"take_axes: axis 2, .* axes -2 to 1"):
            x.take_axes(ctx.from_ints([0]), 2)
        with pytest.raises(DTypeError, match="take_axes: ids is f32, needs i32"):
            x.take_axes(ctx.zeros(1), 0)
        with pytest.raises(ShapeError, match="give 9 axes, needs 0 to 8"):
            x.take_axes(ctx.zeros(*[1] * 8, dtype=I32), 0)
        with pytest.raises(ShapeError, match=r"ids is \(2, 4\), x is \(2, 3\); they differ"):
            x.take_along_axis(ctx.zeros(2, 4, dtype=I32), 0)
