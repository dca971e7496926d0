import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, VIEWS, tensor, weight_bytes
from wgpu_backend.dtypes import BF16, F16, F32, I32, IQ3_S, Q4_0, Q4_K, Q8_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import leaf
from wgpu_backend.ops.moe.experts import linear_by_expert

LIMIT = 1e-10


def experts_of(ctx, count, m, k, dtype, data):
    """Expert weights held as those of a model are."""
    spec = Spec.dense((count, m, k), dtype)
    return leaf(spec, ctx._executor.weight(spec, memoryview(data), "experts"))


def product(executor, check, rng, dtype, *, count=5, m=33, k=256, tokens=3, used=2, x_used=1):
    data = weight_bytes(rng, count * m, k, dtype, k**-0.5)
    x = rng.standard_normal((tokens, x_used, k), "f4")
    ids = rng.integers(0, count, (tokens, used))

    def chosen(ctx):
        weights = experts_of(ctx, count, m, k, dtype, data)
        return weights.mulmat_id(tensor(ctx, x), ctx.from_numpy(ids))

    check(executor, chosen, limit=LIMIT)


@pytest.mark.parametrize("dtype", [*FLOATS, Q4_0, Q8_0, Q4_K], ids=str)
@pytest.mark.parametrize("m", [1, 33])
def test_each_row_meets_its_expert(any_gpu, check, rng, dtype, m):
    product(any_gpu, check, rng, dtype, m=m)


@pytest.mark.parametrize(("tokens", "used", "x_used"), [(1, 1, 1), (1, 8, 8), (7, 3, 1), (9, 2, 2)])
def test_one_row_a_token_or_one_an_expert(any_gpu, check, rng, tokens, used, x_used):
    product(any_gpu, check, rng, Q8_0, k=64, tokens=tokens, used=used, x_used=x_used)


@pytest.mark.parametrize("dtype", [F32, Q4_0], ids=str)
def test_rows_may_lie_behind_others(any_gpu, check, rng, dtype):
    data, x = weight_bytes(rng, 4 * 33, 64, dtype, 1 / 8), rng.standard_normal((6, 1, 64), "f4")
    ids = rng.integers(0, 4, (4, 2))

    def chosen(ctx):
        weights = experts_of(ctx, 4, 33, 64, dtype, data)
        return weights.mulmat_id(tensor(ctx, x)[2:], ctx.from_numpy(ids))

    check(any_gpu, chosen, limit=LIMIT)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("k", [1, 3, 33, 257])
def test_plain_experts_may_have_rows_of_any_length(gpu, check, rng, dtype, k):
    product(gpu, check, rng, dtype, m=5, k=k)


@pytest.mark.parametrize("dtype", [F32, BF16, Q4_0, Q8_0, Q4_K], ids=str)
def test_a_part_may_end_inside_an_expert(split, check, rng, dtype):
    count, m, k = 6, 101, 256
    data = weight_bytes(rng, count * m, k, dtype, 1 / 16)
    with Context(split) as ctx:
        parts = experts_of(ctx, count, m, k, dtype, data).storage.handle
    assert len(parts) > 1
    assert any(part.first_row % m for part in parts)
    product(split, check, rng, dtype, count=count, m=m, k=k, tokens=9, used=3)


def test_plain_experts_of_odd_rows_in_parts(split, check, rng):
    product(split, check, rng, F32, count=7, m=129, k=33, tokens=9, used=3)


def test_some_of_the_experts(any_gpu, check, rng):
    data = weight_bytes(rng, 6 * 9, 64, Q8_0, 1 / 8)
    x, ids = rng.standard_normal((4, 1, 64), "f4"), rng.integers(0, 3, (4, 2))

    def chosen(ctx):
        some = experts_of(ctx, 6, 9, 64, Q8_0, data).slice(0, 2, 5)
        return some.mulmat_id(tensor(ctx, x), ctx.from_numpy(ids))

    check(any_gpu, chosen, limit=LIMIT)


@pytest.mark.parametrize(("layout", "dtype"), VIEWS, ids=str)
def test_rows_and_ids_may_be_views(gpu, check, rng, layout, dtype):
    data, x = weight_bytes(rng, 4 * 9, 64, F16), rng.standard_normal((3, 2, 64), "f4")
    ids = rng.integers(0, 4, (3, 2))

    def chosen(ctx):
        weights = experts_of(ctx, 4, 9, 64, F16, data)
        return weights.mulmat_id(LAYOUTS[layout](ctx, x, dtype), LAYOUTS[layout](ctx, ids, I32))

    check(gpu, chosen, limit=LIMIT)


def test_experts_made_by_ops_serve_as_well(gpu, check, rng):
    w, x = rng.standard_normal((4, 9, 64), "f4"), rng.standard_normal((3, 1, 64), "f4")
    ids = rng.integers(0, 4, (3, 2))

    def chosen(ctx):
        weights = tensor(ctx, w).scale(factor=2)
        return weights.mulmat_id(tensor(ctx, x), ctx.from_numpy(ids))

    check(gpu, chosen, limit=LIMIT)


def test_more_pairs_than_one_axis_of_a_grid_has_groups(any_gpu, check, rng):
    product(any_gpu, check, rng, F16, k=32, m=1, tokens=35_000)


def test_the_host_passes_over_ids_outside(rng):
    w, x = rng.standard_normal((3, 9, 64), "f4"), rng.standard_normal((4, 1, 64), "f4")
    ids = np.array([[0], [-1], [2], [3]], "i4")
    with Context(NumpyExecutor()) as ctx:
        got = tensor(ctx, w).mulmat_id(tensor(ctx, x), ctx.from_numpy(ids)).numpy()
    np.testing.assert_allclose(got[[0, 2], 0], [w[0] @ x[0, 0], w[2] @ x[2, 0]], atol=1e-5)


def test_no_tokens_give_an_empty_product(any_gpu, check, rng):
    product(any_gpu, check, rng, Q8_0, k=64, tokens=0)


def test_the_product_is_numpys(full, rng):
    w, x = rng.standard_normal((4, 9, 64), "f4"), rng.standard_normal((3, 2, 64), "f4")
    ids = rng.integers(0, 4, (3, 2))
    with Context(full) as ctx:
        got = tensor(ctx, w).mulmat_id(tensor(ctx, x), ctx.from_numpy(ids)).numpy()
    np.testing.assert_allclose(got, np.einsum("tumk,tuk->tum", w[ids], x), atol=1e-5)


def test_mulmat_id_refuses_what_does_not_fit(full, rng):
    with Context(full) as ctx:
        ids, weights = ctx.zeros(3, 2, dtype=I32), ctx.zeros(4, 9, 64)
        with pytest.raises(ShapeError, match="rows of x have 32 values, rows of weights have 64"):
            weights.mulmat_id(ctx.zeros(3, 1, 32), ids)
        with pytest.raises(ShapeError, match="ids has 3 tokens, x has 5"):
            weights.mulmat_id(ctx.zeros(5, 1, 64), ids)
        with pytest.raises(ShapeError, match="x has 3 rows a token, ids has 2, needs as many or 1"):
            weights.mulmat_id(ctx.zeros(3, 3, 64), ids)
        with pytest.raises(ShapeError, match=r"strides \(576, 1, 9\), needs whole experts"):
            ctx.zeros(4, 64, 9).permute(0, 2, 1).mulmat_id(ctx.zeros(3, 1, 64), ids)
        with pytest.raises(DTypeError, match="linear_by_expert: ids is f32, needs i32"):
            weights.mulmat_id(ctx.zeros(3, 1, 64), ctx.zeros(3, 2))


@pytest.mark.parametrize("dtype", [F32, Q4_0, Q4_K], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_may_end_with_the_bias_of_its_expert(any_gpu, check, rng, layout, dtype):
    data, bias = weight_bytes(rng, 5 * 33, 256, dtype, 1 / 16), rng.standard_normal((5, 33), "f4")
    x, ids = rng.standard_normal((3, 1, 256), "f4"), rng.integers(0, 5, (3, 2))

    def chosen(ctx):
        weights, of = experts_of(ctx, 5, 33, 256, dtype, data), LAYOUTS[layout]
        return linear_by_expert(weights, of(ctx, x), of(ctx, ids, I32), of(ctx, bias))

    check(any_gpu, chosen, limit=LIMIT)


def test_the_bias_of_experts_in_parts(split, check, rng):
    data, bias = weight_bytes(rng, 6 * 101, 256, Q8_0, 1 / 16), rng.standard_normal((6, 101), "f4")
    x, ids = rng.standard_normal((9, 1, 256), "f4"), rng.integers(0, 6, (9, 3))

    def chosen(ctx):
        weights = experts_of(ctx, 6, 101, 256, Q8_0, data)
        return linear_by_expert(weights, tensor(ctx, x), ctx.from_numpy(ids), tensor(ctx, bias))

    check(split, chosen, limit=LIMIT)


def test_a_bias_of_experts_refuses_what_does_not_fit(full):
    with Context(full) as ctx:
        x, ids = ctx.zeros(3, 1, 64), ctx.zeros(3, 2, dtype=I32)
        with pytest.raises(ShapeError, match=r"bias is \(4, 8\), needs \(4, 9\)"):
            linear_by_expert(ctx.zeros(4, 9, 64), x, ids, ctx.zeros(4, 8))
        quants = experts_of(ctx, 4, 9, 256, IQ3_S, bytes(IQ3_S.nbytes(4 * 9 * 256)))
        with pytest.raises(DTypeError, match="linear_by_expert: weights is iq3_s"):
            linear_by_expert(quants, ctx.zeros(3, 1, 256), ids, ctx.zeros(4, 9))
        with pytest.raises(
            ShapeError,
            match="rows of weights have 33 values, with tiles or a bias it needs a multiple",
        ):
            linear_by_expert(ctx.zeros(4, 9, 33), ctx.zeros(3, 1, 33), ids, ctx.zeros(4, 9))


@pytest.mark.parametrize(("layout", "dtype"), VIEWS, ids=str)
def test_rows_get_the_bias_of_their_expert(gpu, check, rng, layout, dtype):
    x, bias = rng.standard_normal((3, 2, 33), "f4"), rng.standard_normal((5, 33), "f4")
    ids = np.array([[0, 4], [3, 3], [-1, 5]])

    def added(ctx):
        of = LAYOUTS[layout]
        return of(ctx, x, dtype).add_id(of(ctx, bias, dtype), of(ctx, ids, I32))

    check(gpu, added, limit=1e-12)


def test_add_id_refuses_what_does_not_fit(full):
    with Context(full) as ctx:
        x, ids = ctx.zeros(3, 2, 8), ctx.zeros(3, 2, dtype=I32)
        with pytest.raises(ShapeError, match="rows of bias have 9 values, rows of x have 8"):
            x.add_id(ctx.zeros(4, 9), ids)
        with pytest.raises(ShapeError, match="ids has 1 experts a token, x has 2 rows"):
            x.add_id(ctx.zeros(4, 8), ids.slice(1, 0, 1))
