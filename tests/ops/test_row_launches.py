import math

import numpy as np
import pytest

from tests.ops.operands import (
    FLOATS,
    LAYOUTS,
    PLAIN,
    VIEWS,
    WEIGHTS,
    anything,
    bits,
    plain,
    tensor,
    weight_bytes,
)
from wgpu_backend.dtypes import F16, F32, I32, Q4_0, Q6_K, Q8_0, QUANTISABLE
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import leaf

# Dequantised values are a product and a sum of f32: the last bit may differ, no more.
LAST_BIT = 1e-13


@pytest.mark.parametrize(("layout", "dtype"), VIEWS, ids=str)
@pytest.mark.parametrize("batch", [(3,), (2, 3), (1, 1)], ids=str)
def test_rows_of_each_matrix(executor, rng, batch, layout, dtype):
    x = rng.integers(-200, 200, (*batch, 7, 33)).astype("f4")
    ids = rng.integers(0, 7, (*batch, 5))
    with Context(executor) as ctx:
        got = LAYOUTS[layout](ctx, x, dtype).rows(LAYOUTS[layout](ctx, ids, I32)).numpy()
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.take_along_axis(x, ids[..., None], -2))


@pytest.mark.parametrize("shape", [(3, 1, 1), (2, 257, 3), (2, 2, 3, 65), (3, 5, 0)], ids=str)
def test_rows_of_odd_sizes(any_executor, check, rng, shape):
    x, ids = rng.standard_normal(shape, "f4"), rng.integers(0, shape[-2], (*shape[:-2], 33))
    check(any_executor, lambda ctx: tensor(ctx, x).rows(ctx.from_numpy(ids)), limit=0)


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ids_batch", [(2, 3), (1, 3), (2, 1), (1, 1), ()], ids=str)
def test_set_rows_of_each_matrix(executor, check, rng, ids_batch, dtype, source):
    x = rng.standard_normal((2, 3, 4, 12), "f4")
    ids = np.argsort(rng.random((*ids_batch, 9)), -1)[..., :4]
    ids[..., 1] = -1

    def written(ctx):
        return ctx.zeros(2, 3, 9, 12, dtype=dtype).set_rows(
            tensor(ctx, x, source), ctx.from_numpy(ids)
        )

    check(executor, written, limit=0)


def test_set_rows_into_views_of_a_cache(any_executor, check, rng):
    x, ids = rng.standard_normal((2, 3, 8), "f4"), np.array([[0, 4, 2], [1, 3, 0]])

    def written(ctx):
        cache = ctx.zeros(5, 5, 8, dtype=F16)
        ctx.compute(cache[1:3].set_rows(tensor(ctx, x), ctx.from_numpy(ids)))
        return cache

    check(any_executor, written, limit=0)


@pytest.mark.parametrize("dtype", WEIGHTS, ids=str)
@pytest.mark.parametrize("batch", [(3,), (2, 3)], ids=str)
def test_rows_of_matrices_in_blocks(executor, check, rng, batch, dtype):
    data = weight_bytes(rng, math.prod(batch) * 5, 256, dtype)
    ids = rng.integers(0, 5, (*batch, 7))

    def looked_up(ctx):
        return ctx.from_bytes(dtype, data, *batch, 5, 256).rows(ctx.from_numpy(ids))

    check(executor, looked_up, limit=LAST_BIT)
    with Context(executor) as ctx:
        each = ctx.from_bytes(dtype, data, math.prod(batch), 5, 256).numpy()
        got = looked_up(ctx).numpy()
    flat = ids.reshape(-1, 7)
    want = np.stack([matrix[i] for matrix, i in zip(each, flat, strict=True)])
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [F16, Q8_0, Q4_0, Q6_K], ids=str)
def test_rows_of_matrices_in_parts(split, check, rng, dtype):
    data = weight_bytes(rng, 7 * 111, 256, dtype)
    ids = rng.integers(0, 111, (7, 9))
    ids[:, 0], ids[:, 1] = 0, 110
    spec = Spec.dense((7, 111, 256), dtype)

    def looked_up(ctx):
        matrices = leaf(spec, ctx._executor.weight(spec, memoryview(data), "weight"))
        return matrices.rows(ctx.from_numpy(ids))

    check(split, looked_up, limit=LAST_BIT)


@pytest.mark.parametrize("dtype", QUANTISABLE, ids=str)
@pytest.mark.parametrize("ids_batch", [(2, 3), (1, 3), (2, 1), ()], ids=str)
def test_set_rows_into_matrices_of_blocks(executor, check, rng, ids_batch, dtype):
    x = rng.standard_normal((2, 3, 4, 128), "f4")
    ids = np.argsort(rng.random((*ids_batch, 9)), -1)[..., :4]
    ids[..., 1] = -1

    def written(ctx):
        return ctx.zeros(2, 3, 9, 128, dtype=dtype).set_rows(tensor(ctx, x), ctx.from_numpy(ids))

    check(executor, written, limit=0)
    with Context(executor) as ctx:
        got = written(ctx).numpy()
        rounded = tensor(ctx, x).cast(dtype=dtype).numpy()
    want = np.zeros((2, 3, 9, 128), "f4")
    for a, b, k in np.ndindex(2, 3, 4):
        place = np.broadcast_to(ids, (2, 3, 4))[a, b, k]
        if place >= 0:
            want[a, b, place] = rounded[a, b, k]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_rows_of_each_matrix_of_every_type(executor, rng, dtype):
    data, new = anything(rng, dtype, (3, 7, 5)), anything(rng, dtype, (3, 2, 5))
    ids = np.array([[6, 0], [1, -1], [3, 4]])
    want = data.copy()
    for batch, k in np.ndindex(ids.shape):
        if ids[batch, k] >= 0:
            want[batch, ids[batch, k]] = new[batch, k]
    with Context(executor) as ctx:
        state = ctx.zeros(3, 7, 5, dtype=dtype)
        ctx.compute(plain(ctx, data, dtype).copy(state))
        ctx.compute(state.set_rows(plain(ctx, new, dtype), ctx.from_numpy(ids)))
        np.testing.assert_array_equal(bits(state), want)
        taken = state.rows(ctx.from_numpy(np.abs(ids)))
        if dtype not in FLOATS:
            wanted = np.take_along_axis(want, np.abs(ids)[..., None], -2)
            np.testing.assert_array_equal(bits(taken), wanted)


def test_batched_rows_refuse(full):
    with Context(full) as ctx:
        ids = ctx.zeros(2, 4, dtype=I32)
        with pytest.raises(
            ShapeError, match=r"rows: ids is \(2, 4\), x is \(3, 5, 8\), needs \(3, k"
        ):
            ctx.zeros(3, 5, 8).rows(ids)
        with pytest.raises(ShapeError, match=r"rows: a q8_0 matrix is .*, needs whole rows"):
            ctx.state((2, 64, 3), Q8_0).permute(0, 2, 1).rows(ids)
        with pytest.raises(
            ShapeError, match=r"x is \(3, 4, 8\), dst is \(2, 5, 8\), needs all but"
        ):
            ctx.zeros(2, 5, 8).set_rows(ctx.zeros(3, 4, 8), ids)
        with pytest.raises(ShapeError, match=r"set_rows: ids is \(2, 4\), rows of x are \(3, 4\)"):
            ctx.zeros(3, 5, 8).set_rows(ctx.zeros(3, 4, 8), ids)
        with pytest.raises(ShapeError, match=r"f32 into \(2, 5, 6\) f16 .* multiples of 4"):
            ctx.zeros(2, 5, 6, dtype=F16).set_rows(ctx.zeros(2, 4, 6), ids)
        with pytest.raises(ShapeError, match=r"set_rows: x .* 2 axes, needs 3 to 3"):
            ctx.zeros(2, 5, 8, dtype=F32).set_rows(ctx.zeros(4, 8), ids)
