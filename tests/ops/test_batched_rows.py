import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor
from wgpu_backend.dtypes import F16, F32, I32, Q8_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [(3,), (2, 3), (1, 1)], ids=str)
def test_rows_of_each_matrix(gpu, rng, batch, layout, dtype):
    x = rng.integers(-200, 200, (*batch, 7, 33)).astype("f4")
    ids = rng.integers(0, 7, (*batch, 5))
    with Context(gpu) as ctx:
        got = LAYOUTS[layout](ctx, x, dtype).rows(LAYOUTS[layout](ctx, ids, I32)).numpy()
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.take_along_axis(x, ids[..., None], -2))


@pytest.mark.parametrize("shape", [(3, 1, 1), (2, 257, 3), (2, 2, 3, 65), (3, 5, 0)], ids=str)
def test_rows_of_odd_sizes(any_gpu, check, rng, shape):
    x, ids = rng.standard_normal(shape, "f4"), rng.integers(0, shape[-2], (*shape[:-2], 33))
    check(any_gpu, lambda ctx: tensor(ctx, x).rows(ctx.from_numpy(ids)), limit=0)


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ids_batch", [(2, 3), (1, 3), (2, 1), (1, 1), ()], ids=str)
def test_set_rows_of_each_matrix(gpu, check, rng, ids_batch, dtype, source):
    x = rng.standard_normal((2, 3, 4, 12), "f4")
    ids = np.argsort(rng.random((*ids_batch, 9)), -1)[..., :4]
    ids[..., 1] = -1

    def written(ctx):
        return ctx.zeros(2, 3, 9, 12, dtype=dtype).set_rows(
            tensor(ctx, x, source), ctx.from_numpy(ids)
        )

    check(gpu, written, limit=0)


def test_set_rows_into_views_of_a_cache(any_gpu, check, rng):
    x, ids = rng.standard_normal((2, 3, 8), "f4"), np.array([[0, 4, 2], [1, 3, 0]])

    def written(ctx):
        cache = ctx.zeros(5, 5, 8, dtype=F16)
        ctx.compute(cache[1:3].set_rows(tensor(ctx, x), ctx.from_numpy(ids)))
        return cache

    check(any_gpu, written, limit=0)


def test_batched_rows_refuse(full):
    with Context(full) as ctx:
        ids = ctx.zeros(2, 4, dtype=I32)
        with pytest.raises(
            ShapeError, match=r"rows: ids is \(2, 4\), x is \(3, 5, 8\), needs \(3, k"
        ):
            ctx.zeros(3, 5, 8).rows(ids)
        with pytest.raises(DTypeError, match="rows: x is q8_0, needs f32, f16, bf16"):
            ctx.state((2, 3, 32), Q8_0).rows(ids)
        with pytest.raises(
            ShapeError, match=r"x is \(3, 4, 8\), dst is \(2, 5, 8\), needs all but"
        ):
            ctx.zeros(2, 5, 8).set_rows(ctx.zeros(3, 4, 8), ids)
        with pytest.raises(ShapeError, match=r"set_rows: ids is \(2, 4\), rows of x are \(3, 4\)"):
            ctx.zeros(3, 5, 8).set_rows(ctx.zeros(3, 4, 8), ids)
        with pytest.raises(ShapeError, match="set_rows: dst has 6 columns"):
            ctx.zeros(2, 5, 6).set_rows(ctx.zeros(2, 4, 6), ids)
        with pytest.raises(ShapeError, match=r"set_rows: x .* 2 axes, needs 3 to 3"):
            ctx.zeros(2, 5, 8, dtype=F32).set_rows(ctx.zeros(4, 8), ids)
