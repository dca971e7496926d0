import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor
from wgpu_backend.dtypes import F16, F32, I32
from wgpu_backend.errors import ContextError, DTypeError, ShapeError
from wgpu_backend.ml.context import Context

TYPES = [*FLOATS, I32]


def integers(rng, shape):
    return rng.integers(-200, 200, shape).astype("f4")


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_copy_converts_into_a_view_of_a_state(executor, rng, source, target):
    x = integers(rng, (3, 5))
    want = np.zeros((7, 9), "f4")
    want[1:7:2, 2:7] = x
    with Context(executor) as ctx:
        state = ctx.zeros(7, 9, dtype=target)
        window = state.slice(0, 1, 7, 2).slice(1, 2, 7)
        written = tensor(ctx, x, source).copy(window)
        assert written.dtype == target
        np.testing.assert_array_equal(written.contiguous().numpy(), x)
        np.testing.assert_array_equal(state.numpy(), want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copy_takes_views(executor, check, rng, layout):
    x = integers(rng, (3, 5))
    check(executor, lambda ctx: LAYOUTS[layout](ctx, x, F32).copy(ctx.zeros(15)), limit=0)


def test_copy_within_one_tensor(executor):
    with Context(executor) as ctx:
        state = ctx.zeros(9)
        ctx.compute(ctx.from_numpy(np.arange(9, dtype="f4")).copy(state))
        ctx.compute(state[:6].copy(state[3:]))
        np.testing.assert_array_equal(state.numpy(), [0, 1, 2, 0, 1, 2, 3, 4, 5])


def test_copy_refuses(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"copy: \(3,\) has 3 values, \(2, 2\) has 4"):
            ctx.zeros(3).copy(ctx.zeros(2, 2))
        with pytest.raises(ContextError, match="copy: dst is an input, needs a state"):
            ctx.zeros(3).copy(ctx.from_floats([1, 2, 3]))


def test_slice_update_is_numpys_assignment(executor, rng):
    x, update = integers(rng, (5, 9, 7)), integers(rng, (2, 3, 7))
    want = x.copy()
    want[1:5:3, 2:8:2] = update
    with Context(executor) as ctx:
        base, new = LAYOUTS["permuted"](ctx, x, F16), LAYOUTS["sliced"](ctx, update, F16)
        got = base.slice_update(new, (1, 2, 0), (5, 8, 7), (3, 2, 1))
        short = base.slice_update(new, (1, 2, 0), steps=(3, 2, 1))
        np.testing.assert_array_equal(got.numpy(), want)
        np.testing.assert_array_equal(short.numpy(), want)
        np.testing.assert_array_equal(base.contiguous().numpy(), x)


@pytest.mark.parametrize("size", [1, 3, 33, 257])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_neighbours_of_a_slice_stay(any_executor, rng, size, dtype):
    x, update = integers(rng, size + 2), integers(rng, size)
    with Context(any_executor) as ctx:
        got = tensor(ctx, x, dtype).slice_update(tensor(ctx, update, dtype), [1]).numpy()
    np.testing.assert_array_equal(got, np.concatenate([x[:1], update, x[-1:]]))


def test_updates_leave_other_readers_alone(executor, rng):
    x, update = integers(rng, (4, 5)), integers(rng, (2, 5))

    with Context(executor) as ctx:
        a = tensor(ctx, x) + 1
        b = a.slice_update(tensor(ctx, update), (1, 0))
        got = (b * 1000 + a).numpy()
    y = x + 1
    want = y.copy()
    want[1:3] = update
    np.testing.assert_array_equal(got, want * 1000 + y)


def test_a_chain_of_updates_over_one_storage(executor, rng):
    x = integers(rng, (6, 5))
    with Context(executor) as ctx:
        a = tensor(ctx, x) * 1
        for row in range(5):
            a = a.slice_update(a.slice(0, row, row + 1) + 1, (row + 1, 0))
        got = (a + 0).numpy()
    np.testing.assert_array_equal(got, x[0] + np.arange(6)[:, None])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_set_inplace_writes_a_strided_window(executor, rng, dtype):
    x, src = integers(rng, (6, 7)), integers(rng, (3, 4))
    want = x.copy().reshape(-1)
    want[2 + 11 * np.arange(3)[:, None] + 2 * np.arange(4)] = src
    with Context(executor) as ctx:
        base = tensor(ctx, x, dtype)
        got = base.set_inplace(tensor(ctx, src, dtype), (11, 2), 2).numpy()
        np.testing.assert_array_equal(got, want.reshape(6, 7))
        np.testing.assert_array_equal(base.numpy(), x)


def test_updates_refuse(full):
    with Context(full) as ctx:
        x, half = ctx.zeros(4, 5), ctx.zeros(4, 5, dtype=F16)
        with pytest.raises(ShapeError, match="set_inplace: elements 3 to 23, x has 20"):
            x.set_inplace(ctx.zeros(20), (1,), 3)
        with pytest.raises(
            ShapeError, match=r"set_inplace: strides \(1,\), offset 0, \(2, 2\) nee"
        ):
            x.set_inplace(ctx.zeros(2, 2), (1,))
        with pytest.raises(ShapeError, match="slice: 3:5:1 of axis 0, which has 4 values"):
            x.slice_update(ctx.zeros(2, 5), (3, 0))
        with pytest.raises(ShapeError, match=r"update is \(2, 4\), the slice is \(3, 5\)"):
            x.slice_update(ctx.zeros(2, 4), (0, 0), (3, 5))
        with pytest.raises(ShapeError, match=r"starts \(0,\), update \(4, 5\), .* needs 2 of each"):
            x.slice_update(ctx.zeros(4, 5), (0,))
        with pytest.raises(DTypeError, match="slice_update: src is f16, needs f32"):
            x.slice_update(half, (0, 0))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_nothing_is_written_into_nothing(executor, check, shape):
    x = np.zeros(shape, "f4")
    check(executor, lambda ctx: tensor(ctx, x).slice_update(tensor(ctx, x), (0,) * x.ndim), limit=0)
