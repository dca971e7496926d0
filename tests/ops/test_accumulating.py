import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, ROUNDED, tensor
from wgpu_backend.dtypes import BOOL, F32, I8, I32
from wgpu_backend.errors import DTypeError, OptionError, ShapeError
from wgpu_backend.ml.context import Context

MODES = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def folded(x, ids, values, axis, mode):
    """The same in NumPy; ids outside are left out before."""
    y = np.moveaxis(x.copy(), axis, 0)
    MODES[mode].at(y, ids, np.moveaxis(values, axis, 0))
    return np.moveaxis(y, 0, axis)


@pytest.mark.parametrize("dtype", [F32, I32], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_folded_where_ids_say(gpu, check, rng, mode, axis, dtype):
    x = rng.integers(1, 4, (3, 5, 9)).astype("f4")
    ids = rng.integers(-x.shape[axis], x.shape[axis], 13).astype("i4")
    shape = list(x.shape)
    shape[axis] = len(ids)
    values = rng.integers(0, 3, shape).astype("f4")

    def build(ctx):
        made = LAYOUTS["permuted"]
        given = made(ctx, values, dtype)
        return made(ctx, x, dtype).fold_at(ctx.from_numpy(ids), given, axis, mode)

    check(gpu, build, limit=ROUNDED.get(dtype, 0))
    with Context(gpu) as ctx:
        found = build(ctx)
        assert found.dtype == dtype
        got = found.numpy()
    if mode == "mul" and dtype in FLOATS:
        return  # NumPy rounds other products
    kind = np.float32 if dtype in FLOATS else dtype.numpy
    want = folded(x.astype(kind), ids, values.astype(kind), axis, mode)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "k"), [((1,), 1), ((33,), 257), ((257, 3), 33), ((2, 3, 5), 9)])
def test_values_are_folded_with_an_id_for_each(gpu, check, rng, shape, k, mode):
    x = rng.standard_normal(shape, "f4")
    for axis in (0, -1):
        own = list(shape)
        own[axis] = k
        ids = rng.integers(-shape[axis] - 2, shape[axis] + 2, own).astype("i4")
        values = rng.standard_normal(own, "f4")

        def build(ctx, ids=ids, values=values, axis=axis):
            whole = tensor(ctx, x)
            return whole.fold_along_axis(ctx.from_numpy(ids), tensor(ctx, values), axis, mode)

        check(gpu, build, limit=1e-12)
        want = np.moveaxis(x.copy(), axis, 0)
        for at in np.ndindex(*own):
            n = ids[at] + (shape[axis] if ids[at] < 0 else 0)
            if 0 <= n < shape[axis]:
                place = (n, *[a for i, a in enumerate(at) if i != axis % len(shape)])
                want[place] = MODES[mode](want[place], values[at])
        with Context(gpu) as ctx:
            got = build(ctx).numpy()
        np.testing.assert_allclose(got, np.moveaxis(want, 0, axis), rtol=1e-4, atol=1e-5)


def test_nan_and_infinities_and_many_equal_ids(gpu, check, rng):
    x = np.zeros((3, 4), "f4")
    values = rng.standard_normal((5000, 4)).astype("f4")
    values[7, 1], values[9, 2], values[11, 3] = np.nan, np.inf, -np.inf
    ids = rng.integers(0, 2, 5000).astype("i4")
    for mode in ("add", "max", "min"):
        check(
            gpu,
            lambda ctx, mode=mode: tensor(ctx, x).fold_at(
                ctx.from_numpy(ids), tensor(ctx, values), 0, mode
            ),
            limit=1e-10,
        )
    with Context(gpu) as ctx:
        twice = [
            tensor(ctx, x).fold_at(ctx.from_numpy(ids), tensor(ctx, values), 0).numpy()
            for _ in range(2)
        ]
    np.testing.assert_array_equal(twice[0], twice[1])


@pytest.mark.parametrize(("shape", "k"), [((0, 3), 0), ((2, 3), 0), ((2, 0), 5), ((0, 3), 4)])
def test_nothing_is_folded(executor, shape, k):
    with Context(executor) as ctx:
        values = ctx.zeros(k, shape[1])
        got = ctx.zeros(*shape).fold_at(ctx.zeros(k, dtype=I32), values, 0)
        np.testing.assert_array_equal(got.numpy(), np.zeros(shape))


@pytest.mark.parametrize("shape", [(1,), (3,), (33,), (257,), (3, 1100), (2, 3, 5, 7), (0, 3)])
@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_what_is_true_is_counted_and_found(executor, rng, shape, share):
    x = rng.random(shape) < share
    with Context(executor) as ctx:
        mask = ctx.from_numpy(np.ascontiguousarray(x.T), BOOL).permute(*range(x.ndim)[::-1])
        count = int(mask.count_true().numpy())
        assert count == np.count_nonzero(x)
        found = mask.compact(count)
        assert found.dtype == I32
        np.testing.assert_array_equal(found.numpy(), np.flatnonzero(x))
        more = mask.compact(count + 5).numpy()
        np.testing.assert_array_equal(more, [*np.flatnonzero(x), *[0] * 5])
        if count:
            np.testing.assert_array_equal(mask.compact(1).numpy(), np.flatnonzero(x)[:1])


def test_refusals(full):
    with Context(full) as ctx:
        x, ids = ctx.zeros(3, 4), ctx.zeros(2, dtype=I32)
        with pytest.raises(OptionError, match="fold_at: mode is 'div', needs one of"):
            x.fold_at(ids, ctx.zeros(2, 4), 0, "div")
        with pytest.raises(ShapeError, match=r"fold_at: ids is \(2,\), values is \(3, 4\)"):
            x.fold_at(ids, x, 0)
        with pytest.raises(DTypeError, match="fold_at: values is i8, needs f32"):
            x.fold_at(ids, ctx.zeros(2, 4, dtype=I8), 0)
        with pytest.raises(ShapeError, match=r"fold_along_axis: ids is \(2,\), x is \(3, 4\)"):
            x.fold_along_axis(ids, x, 0)
        with pytest.raises(DTypeError, match="compact: mask is f32, needs bool"):
            x.compact(3)
        with pytest.raises(ShapeError, match="compact: count is -1, needs 0 or more"):
            ctx.zeros(3, dtype=BOOL).compact(-1)
        assert ctx.zeros(2, dtype=F32).fold_at(ids, ctx.zeros(2), 0).dtype == F32
