import numpy as np
import pytest

from tests.ops.operands import FLOATS, tensor
from wgpu_backend.dtypes import BF16, F16, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

TYPES = [*FLOATS, I32]


def integers(rng, shape):
    return rng.integers(-200, 200, shape).astype("f4")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (-1,), (0, 2), (2, 0, 1)], ids=str)
def test_scatter_writes_windows(executor, check, rng, axes, dtype):
    x = integers(rng, (5, 6, 7))
    ids = [rng.permutation(5)[:4] for _ in axes]
    window = [1 if a in [b % 3 for b in axes] else n for a, n in enumerate(x.shape)]
    updates = integers(rng, (4, *window))

    def built(ctx):
        places = [ctx.from_numpy(i) for i in ids]
        return tensor(ctx, x, dtype).scatter(places, tensor(ctx, updates, dtype), axes)

    check(executor, built, limit=0)
    want = np.moveaxis(x.copy(), axes, range(len(axes)))
    want[tuple(ids)] = updates.reshape(4, *want.shape[len(axes) :])
    with Context(executor) as ctx:
        got = built(ctx).numpy()
    np.testing.assert_array_equal(np.moveaxis(got, axes, range(len(axes))), want)


def test_scatter_with_ids_of_two_axes_and_windows(any_executor, check, rng):
    x, ids = integers(rng, (12, 5)), np.array([[0, 9], [3, -6]])
    updates = integers(rng, (2, 2, 3, 4))
    check(
        any_executor,
        lambda ctx: tensor(ctx, x).scatter([ctx.from_numpy(ids)], tensor(ctx, updates), [0]),
        limit=0,
    )


@pytest.mark.parametrize("outside", [5, 6, -6, 2**31 - 1, -(2**31)])
def test_what_scatter_would_write_outside_is_dropped(executor, check, rng, outside):
    x, ids, updates = integers(rng, (5, 3)), np.array([1, outside]), integers(rng, (2, 2, 3))
    check(
        executor,
        lambda ctx: tensor(ctx, x).scatter([ctx.from_numpy(ids)], tensor(ctx, updates), [0]),
        limit=0,
    )


def test_slice_update_dynamic_reads_its_place(any_executor, check, rng):
    x, update = integers(rng, (5, 9)), integers(rng, (2, 4))
    for start in ([1, 3], [0, 0], [3, 5], [-2, 0], [4, 7], [99, 0]):
        check(
            any_executor,
            lambda ctx, s=start: tensor(ctx, x).slice_update_dynamic(
                tensor(ctx, update), ctx.from_ints(s), (0, 1)
            ),
            limit=0,
        )
    with Context(any_executor) as ctx:
        got = tensor(ctx, x).slice_update_dynamic(tensor(ctx, update), ctx.from_ints([3]), (1,))
        want = x.copy()
        want[0:2, 3:7] = update
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_put_along_axis_is_numpys(executor, rng, axis, dtype):
    x = integers(rng, (3, 5, 9))
    shape = list(x.shape)
    shape[axis] = 3
    ids = np.argsort(rng.random(x.shape), axis)
    ids = np.take(ids, range(3), axis)
    ids = np.where(rng.random(shape) < 0.5, ids, ids - x.shape[axis])
    values = integers(rng, shape)
    want = x.copy()
    np.put_along_axis(want, ids, values, axis)
    with Context(executor) as ctx:
        base = tensor(ctx, x, dtype)
        got = base.put_along_axis(ctx.from_numpy(ids), tensor(ctx, values, dtype), axis).numpy()
    np.testing.assert_array_equal(got, want)


def test_threads_write_halves_of_one_word(any_executor, check, rng):
    x, ids = integers(rng, 4001), rng.permutation(4001)
    values = integers(rng, 4001)
    for dtype in (F16, BF16):
        check(
            any_executor,
            lambda ctx, d=dtype: tensor(ctx, x, d).put_along_axis(
                ctx.from_numpy(ids), tensor(ctx, values, d), 0
            ),
            limit=0,
        )


def test_scatter_and_put_refuse(full):
    with Context(full) as ctx:
        x, ids = ctx.zeros(4, 5), ctx.from_ints([0, 1])
        with pytest.raises(ShapeError, match=r"scatter: updates is \(2, 5\), ids \[\(2,\)\], x"):
            x.scatter([ids], ctx.zeros(2, 5), [0])
        with pytest.raises(ShapeError, match="scatter: 1 tensors of ids, axes"):
            x.scatter([ids], ctx.zeros(2, 1, 5), [0, 1])
        with pytest.raises(ShapeError, match=r"windows are \(1, 6\), x is \(4, 5\)"):
            x.scatter([ids], ctx.zeros(2, 1, 6), [0])
        with pytest.raises(DTypeError, match="scatter: ids is f32, needs i32"):
            x.scatter([ctx.zeros(2)], ctx.zeros(2, 1, 5), [0])
        with pytest.raises(ShapeError, match=r"starts is \(2,\), update \(1, 5\), needs \(1,\)"):
            x.slice_update_dynamic(ctx.zeros(1, 5), ids, (0,))
        with pytest.raises(
            ShapeError, match=r"put_along_axis: values is \(1, 5\), ids is \(2, 5\)"
        ):
            x.put_along_axis(ctx.zeros(2, 5, dtype=I32), ctx.zeros(1, 5), 0)
