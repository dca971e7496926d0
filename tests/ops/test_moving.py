from typing import Any

import numpy as np
import pytest

from tests.ops.operands import LAYOUTS, tensor
from wgpu_backend.dtypes import BF16, BOOL, COMPLEX64, F16, F32, I8, I16, I32, I64, U8, U16, U32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.shape import creation
from wgpu_backend.ops.shape.moving import numpy_diag

SHAPES = [(1,), (33,), (3, 257), (2, 3, 5, 7), (2, 1, 3, 2, 3, 2), (3, 0)]


def same(executor, build, want):
    with Context(executor) as ctx:
        np.testing.assert_array_equal(build(ctx).numpy(), want)


@pytest.mark.parametrize(("shifts", "axes"), [(5, None), (-3, 0), ((1, -7), (0, -1)), (2, (0, -1))])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_roll_moves_around(executor, rng, shape, shifts, axes):
    x = rng.standard_normal(shape, "f4")
    want = np.roll(x, shifts, axes)
    same(executor, lambda ctx: LAYOUTS["permuted"](ctx, x).roll(shifts, axes), want)


@pytest.mark.parametrize("dtype", [F16, BOOL, U8, I64, COMPLEX64], ids=str)
def test_values_of_every_width_are_moved(gpu, rng, dtype):
    x = rng.integers(0, 2, (3, 5, 7)).astype(dtype.numpy)
    with Context(gpu) as ctx:
        given = ctx.from_numpy(x, dtype)
        for got, want in (
            (given.roll(2, 1), np.roll(x, 2, 1)),
            (given.tile(2, 1, 3), np.tile(x, (2, 1, 3))),
            (given.repeat_each(3, 1), np.repeat(x, 3, 1)),
            (given.tril(1), np.tril(x, 1)),
            (given.triu(-1), np.triu(x, -1)),
            (given.diagonal(1, 0, 2), np.diagonal(x, 1, 0, 2)),
        ):
            np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles_and_repeats(gpu, rng, shape):
    x = rng.standard_normal(shape, "f4")
    for times in ((2,), (3, 1, 2), (0, 2)):
        same(gpu, lambda ctx, t=times: LAYOUTS["permuted"](ctx, x).tile(*t), np.tile(x, times))
    for axis in (0, -1):
        want = np.repeat(x, 3, axis)
        same(gpu, lambda ctx, a=axis: LAYOUTS["permuted"](ctx, x).repeat_each(3, a), want)


@pytest.mark.parametrize("k", [0, 2, -2, 40, -(2**40)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (33, 9), (2, 1, 2, 3, 5, 4), (2, 0)], ids=str)
def test_triangles_and_diagonals(executor, rng, shape, k):
    x = rng.standard_normal(shape, "f4")
    with Context(executor) as ctx:
        given = LAYOUTS["permuted"](ctx, x)
        np.testing.assert_array_equal(given.tril(k).numpy(), np.tril(x, max(k, -99)))
        np.testing.assert_array_equal(given.triu(k).numpy(), np.triu(x, max(k, -99)))
        found = given.diagonal(k, -2, -1).contiguous().numpy()
        np.testing.assert_array_equal(found, np.diagonal(x, max(k, -99), -2, -1))


@pytest.mark.parametrize("k", [0, 1, -3])
def test_vectors_on_diagonals(gpu, rng, k):
    x = rng.standard_normal(9, "f4")
    same(gpu, lambda ctx: numpy_diag(tensor(ctx, x), k), np.diag(x, k))
    square = rng.standard_normal((5, 7), "f4")
    same(gpu, lambda ctx: numpy_diag(tensor(ctx, square), k).contiguous(), np.diag(square, k))


def made(ctx, op, **how) -> Any:
    """Tensor of an op that has no operands."""
    return op.add_to(ctx._builder, **how)


@pytest.mark.parametrize("dtype", [F32, F16, BOOL, U8, I16, I32, I64, COMPLEX64], ids=str)
@pytest.mark.parametrize(("rows", "cols", "k"), [(1, 1, 0), (5, 9, 2), (33, 7, -3), (0, 3, 0)])
def test_eyes_and_constants_of_every_type(executor, rows, cols, k, dtype):
    with Context(executor) as ctx:
        got = made(ctx, creation.eye, rows=rows, cols=cols, k=k, dtype=dtype).numpy()
        np.testing.assert_array_equal(got, np.eye(rows, cols, k, dtype.numpy))
        assert got.dtype == dtype.numpy
        value = 1 if dtype == BOOL else 7 - 2j if dtype == COMPLEX64 else 7
        got = made(ctx, creation.full, shape=(rows, cols, 3), value=value, dtype=dtype).numpy()
        np.testing.assert_array_equal(got, np.full((rows, cols, 3), value, dtype.numpy))


def test_constants_are_rounded_or_refused(executor):
    with Context(executor) as ctx:
        assert made(ctx, creation.full, shape=(), value=1 / 3, dtype=BF16).numpy() == 0.333984375
        assert made(ctx, creation.full, shape=(), value=-np.inf, dtype=F16).numpy() == -np.inf
        assert made(ctx, creation.full, shape=(), value=-(2**40), dtype=I64).numpy() == -(2**40)
        with pytest.raises(DTypeError, match=r"full: 256 at .* does not fit u8"):
            made(ctx, creation.full, shape=(3,), value=256, dtype=U8)
        with pytest.raises(DTypeError, match=r"full: 0.5 at .* does not fit i32"):
            made(ctx, creation.full, shape=(3,), value=0.5, dtype=I32)


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("num", [0, 1, 2, 3, 33, 1000])
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (-3.5, 1e4), (5, -5), (2, 2)])
def test_linspace_hits_both_ends(executor, start, stop, num, endpoint):
    how = {"start": start, "stop": stop, "num": num, "endpoint": endpoint}
    with Context(executor) as ctx:
        got = made(ctx, creation.linspace, **how).numpy()
    want = np.linspace(start, stop, num, endpoint)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * max(abs(start), abs(stop)))
    if num > 1:
        assert got[0] == np.float32(start)
        assert not endpoint or got[-1] == np.float32(stop)


@pytest.mark.parametrize("dtype", [F32, F16, I8, I16, I32, I64, U8, U16, U32], ids=str)
def test_arange_of_every_type(executor, dtype):
    with Context(executor) as ctx:
        for start, stop, step in ((3, 90, 7), (100, 3, -9), (5, 5, 1), (120, 0, -1)):
            got = ctx.arange(start, stop, step, dtype).numpy()
            np.testing.assert_array_equal(got, np.arange(start, stop, step, dtype.numpy))
        if dtype != F32:
            with pytest.raises(DTypeError, match="arange: "):
                ctx.arange(2**40, 2**40 + 3, 1, dtype)


def test_windows_of_six_axes(gpu, rng):
    x = rng.standard_normal((2, 3, 2, 3, 2, 5), "f4")
    pairs = [(0, 0), (1, 2), (0, 0), (0, 1), (2, 0), (0, 0)]
    ids = np.argsort(rng.random(x.shape), 3)[:, :, :, :2]
    values = rng.standard_normal(ids.shape, "f4")
    want = x.T.copy()
    np.put_along_axis(want, ids.T, values.T, 2)
    with Context(gpu) as ctx:
        given = tensor(ctx, x)
        np.testing.assert_array_equal(given.T.pad_ext(*pairs[::-1]).numpy(), np.pad(x, pairs).T)
        np.testing.assert_array_equal(given.repeat(1, 2).numpy(), np.tile(x, (1, 2, 1, 1, 1, 1)))
        np.testing.assert_array_equal(given.T.repeat(0, 1).numpy(), x.T)
        places, others = ctx.from_numpy(ids.astype("i4")).T, tensor(ctx, values).T
        np.testing.assert_array_equal(given.T.put_along_axis(places, others, 2).numpy(), want)


def test_refusals(full):
    with Context(full) as ctx:
        x = ctx.zeros(2, 3)
        with pytest.raises(ShapeError, match="roll: 3 shifts, 2 axes, needs one for each"):
            x.roll((1, 2, 3), (0, 1))
        with pytest.raises(ShapeError, match=r"tile: \(1, -1\) times, needs 0 or more"):
            x.tile(-1)
        with pytest.raises(ShapeError, match=r"diagonal: axes .* name one of 2 axes twice"):
            x.diagonal(0, 1, -1)
        with pytest.raises(ShapeError, match="1 axes, needs 2 to 8"):
            ctx.zeros(3).tril()
        with pytest.raises(ShapeError, match="linspace: -1 values, needs 0 or more"):
            made(ctx, creation.linspace, start=0, stop=1, num=-1)
