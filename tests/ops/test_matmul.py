import numpy as np
import pytest

from tests.blocks import sampled
from tests.ops.operands import FLOATS, LAYOUTS, WEIGHTS, tensor, weight, weight_bytes
from tests.shares import rare
from wgpu_backend.dtypes import F16, F32, I32, Q4_0, Q6_K, Q8_0
from wgpu_backend.errors import DeviceError, DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.linear.attributes import Epilogue
from wgpu_backend.ops.linear.linear import linear, linear_layer

# Everything is dequantised to f32 and summed in f32; NumPy does the same in another order. Whole
# matrices differ by 1e-13; a single sum of hundreds may nearly cancel.
LIMIT, LIMIT_OF_ONE = 1e-10, 1e-8


def product(executor, check, rng, dtype, m, n, k):
    data = weight_bytes(rng, m, k, dtype, k**-0.5)
    x = rng.standard_normal((n, k), "f4")

    def multiplied(ctx):
        return weight(ctx._executor, m, k, dtype, data).mulmat(tensor(ctx, x))

    check(executor, multiplied, limit=LIMIT if m * n > 1 else LIMIT_OF_ONE)


@pytest.mark.parametrize("n", [1, 3, 33])
@pytest.mark.parametrize("m", [1, 33, 257])
@pytest.mark.parametrize("dtype", sampled(WEIGHTS, "baseline"), ids=str)
def test_every_format_times_few_and_many_columns(any_gpu, check, rng, dtype, m, n):
    product(any_gpu, check, rng, dtype, m, n, 256)


@pytest.mark.parametrize("k", [32, 64, 96, 160, 2080])
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("dtype", [F32, Q4_0], ids=str)
def test_rows_of_any_number_of_groups(any_gpu, check, rng, dtype, n, k):
    product(any_gpu, check, rng, dtype, 7, n, k)


@pytest.mark.parametrize("n", range(1, 11))
def test_any_number_of_columns(gpu, check, rng, n):
    product(gpu, check, rng, Q8_0, 19, n, 64)


@pytest.mark.parametrize("n", [1, 2, 3, *(pytest.param(n, marks=rare) for n in range(4, 9)), 9, 10])
def test_any_number_of_columns_on_hardware_kernels(executors, check, rng, n):
    product(executors("wide"), check, rng, Q8_0, 19, n, 64)


@pytest.mark.parametrize(("m", "n"), [(63, 31), (64, 32), (65, 33), (128, 64), (129, 65)])
def test_tiles_that_do_and_do_not_divide(any_gpu, check, rng, m, n):
    product(any_gpu, check, rng, F16, m, n, 96)


@pytest.mark.parametrize("n", [1, 2, 33])
@pytest.mark.parametrize("dtype", sampled(WEIGHTS, "split wide"), ids=str)
def test_weights_in_parts(split, check, rng, dtype, n):
    # 480 rows: two parts of q4_0 up to eight of f32, the last one smaller.
    data = weight_bytes(rng, 480, 256, dtype, 1 / 16)
    x = rng.standard_normal((n, 256), "f4")

    def multiplied(ctx):
        return weight(ctx._executor, 480, 256, dtype, data).mulmat(tensor(ctx, x))

    assert len(weight(split, 480, 256, dtype, data).storage.handle) > 1
    check(split, multiplied, limit=LIMIT)


@pytest.mark.parametrize(("kind", "m"), [("full", 8 * 65535 + 11), ("wide", 8 * 65535 + 3)])
def test_more_rows_than_65535_groups(executors, check, rng, kind, m):
    product(executors(kind), check, rng, F16, m, 1, 32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [F32, F16, Q4_0], ids=str)
def test_columns_may_be_views(any_gpu, check, rng, dtype, layout):
    data, x = weight_bytes(rng, 33, 64, dtype), rng.standard_normal((5, 64), "f4")
    check(
        any_gpu,
        lambda ctx: ctx.from_bytes(dtype, data, 33, 64).mulmat(LAYOUTS[layout](ctx, x)),
        limit=LIMIT,
    )


@pytest.mark.parametrize("dtype", WEIGHTS, ids=str)
def test_rows_of_a_weight_may_be_sliced(any_gpu, check, rng, dtype):
    data, x = weight_bytes(rng, 48, 256, dtype, 1 / 16), rng.standard_normal((2, 256), "f4")

    def multiplied(ctx):
        part = weight(ctx._executor, 48, 256, dtype, data).slice(0, 17, 40)
        return part.mulmat(tensor(ctx, x))

    check(any_gpu, multiplied, limit=LIMIT)


@pytest.mark.parametrize("dtype", [F32, Q4_0], ids=str)
@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 3, 64), (2, 3, 5, 64)], ids=str)
def test_leading_axes_of_x_stay(gpu, check, rng, shape, dtype):
    data, x = weight_bytes(rng, 9, 64, dtype), rng.standard_normal(shape, "f4")
    check(
        gpu,
        lambda ctx: ctx.from_bytes(dtype, data, 9, 64).mulmat(tensor(ctx, x)),
        limit=LIMIT,
    )


@pytest.mark.parametrize("k", [1, 3, 33, 257])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_plain_products_of_odd_sizes(gpu, check, rng, layout, k):
    a, x = rng.standard_normal((5, k), "f4"), rng.standard_normal((3, k), "f4")
    check(
        gpu,
        lambda ctx: LAYOUTS[layout](ctx, a).mulmat(LAYOUTS[layout](ctx, x)),
        limit=LIMIT,
    )


@pytest.mark.parametrize("x_type", FLOATS, ids=str)
@pytest.mark.parametrize("a_type", FLOATS, ids=str)
def test_plain_products_of_every_type(gpu, check, rng, a_type, x_type):
    a, x = rng.standard_normal((5, 64), "f4"), rng.standard_normal((3, 64), "f4")
    check(
        gpu,
        lambda ctx: tensor(ctx, a, a_type).mulmat(tensor(ctx, x, x_type)),
        limit=LIMIT,
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 5, 9), (2, 3, 9)),
        ((2, 5, 9), (6, 3, 9)),
        ((1, 5, 9), (3, 9)),
        ((1, 1, 5, 9), (3, 9)),
        ((5, 9), (2, 4, 3, 9)),
        ((2, 5, 9), (3, 4, 7, 9)),
        ((3, 2, 5, 9), (3, 4, 7, 9)),
        ((2, 2, 5, 9), (6, 4, 7, 9)),
        ((1, 5, 9), (9,)),
    ],
    ids=str,
)
def test_batches_of_the_weight_repeat(gpu, check, rng, left, right):
    a, x = rng.standard_normal(left, "f4"), rng.standard_normal(right, "f4")
    check(gpu, lambda ctx: tensor(ctx, a).mulmat(tensor(ctx, x)), limit=LIMIT)


def test_heads_of_keys_serve_neighbouring_heads_of_queries(gpu, check, rng):
    keys, queries = rng.standard_normal((7, 2, 32), "f4"), rng.standard_normal((5, 8, 32), "f4")

    def scores(ctx):
        k, q = tensor(ctx, keys).permute(1, 0, 2), tensor(ctx, queries).permute(1, 0, 2)
        return k.mulmat(q)

    check(gpu, scores, limit=LIMIT)
    with Context(gpu) as ctx:
        got = scores(ctx).numpy()
    want = np.einsum("khd,qhd->hqk", np.repeat(keys, 4, axis=1), queries)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_matrix_operator_multiplies_as_numpy_does(gpu, rng):
    a, b = rng.standard_normal((3, 33), "f4"), rng.standard_normal((33, 5), "f4")
    with Context(gpu) as ctx:
        np.testing.assert_allclose((tensor(ctx, a) @ tensor(ctx, b)).numpy(), a @ b, atol=1e-5)


@pytest.mark.parametrize("dtype", [F32, Q4_0], ids=str)
def test_no_columns_give_an_empty_product(any_gpu, check, rng, dtype):
    data = weight_bytes(rng, 9, 64, dtype)
    check(
        any_gpu,
        lambda ctx: ctx.from_bytes(dtype, data, 9, 64).mulmat(ctx.zeros(0, 64)),
        limit=0,
    )


def test_rows_of_another_length_are_refused(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match=r"x have 31 values, .* have 32"):
        ctx.zeros(4, 32).mulmat(ctx.zeros(2, 31))


def test_batches_that_do_not_divide_are_refused(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match=r"axes \(2,\), .* x, \(3,\)"):
        ctx.zeros(2, 4, 32).mulmat(ctx.zeros(3, 2, 32))


def test_a_vector_is_no_weight(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match=r"weight .* 1 axes, needs 2 to 4"):
        ctx.zeros(32).mulmat(ctx.zeros(3, 32))


def test_a_strided_block_weight_is_refused(full, rng):
    data = weight_bytes(rng, 9, 64, Q4_0)
    with Context(full) as ctx, pytest.raises(ShapeError, match=r"q4_0 weight is \(9, 32\)"):
        ctx.from_bytes(Q4_0, data, 9, 64).slice(1, 32, 64).mulmat(ctx.zeros(1, 32))


def test_other_types_are_refused(full, rng):
    data = weight_bytes(rng, 9, 64, Q4_0)
    with Context(full) as ctx:
        with pytest.raises(DTypeError, match="mulmat: x is i32, needs f32, f16, bf16"):
            ctx.zeros(4, 32).mulmat(ctx.zeros(2, 32, dtype=I32))
        with pytest.raises(DTypeError, match="mulmat: x is f16, needs f32; cast it first"):
            ctx.from_bytes(Q4_0, data, 9, 64).mulmat(ctx.zeros(2, 64, dtype=F16))
        with pytest.raises(DTypeError, match="mulmat: weight is i32, needs"):
            ctx.zeros(4, 32, dtype=I32).mulmat(ctx.zeros(2, 32))


@pytest.mark.parametrize("n", [1, 3, 33])
@pytest.mark.parametrize("dtype", [F32, F16, Q4_0, Q6_K], ids=str)
@pytest.mark.parametrize("residual", [False, True], ids=["bias", "residual"])
def test_a_sum_goes_into_the_product(any_gpu, check, rng, dtype, n, residual):
    data = weight_bytes(rng, 67, 256, dtype)
    x, addend = rng.standard_normal((n, 256), "f4"), rng.standard_normal((n, 67), "f4")

    def product(ctx):
        added = ctx.from_numpy(addend if residual else addend[0])
        return linear(weight(ctx._executor, 67, 256, dtype, data), ctx.from_numpy(x), added)

    # As a product alone: sums in f32.
    check(any_gpu, product, limit=1e-10)


def test_a_sum_that_does_not_fit_a_product_is_refused(full):
    with Context(full) as ctx:
        matrix, x = ctx.zeros(5, 32), ctx.zeros(3, 32)
        with pytest.raises(ShapeError, match=r"addend is \(4,\), needs \(5,\) or \(3, 5\)"):
            linear(matrix, x, ctx.zeros(4))
        with pytest.raises(ShapeError, match=r"weight is \(5, 33\) .* groups of 32"):
            linear(ctx.zeros(5, 33), ctx.zeros(3, 33), ctx.zeros(5))


@pytest.mark.slow
@pytest.mark.parametrize("k", [32, 33])
def test_linear_adds_whatever_broadcasts(any_gpu, check, rng, k):
    values = [rng.standard_normal(s, "f4") for s in ((5, k), (3, k), (1, 5))]
    for addend in (values[2], values[2][0], values[2].repeat(3, axis=0)):
        arrays = (*values[:2], addend)
        check(any_gpu, lambda ctx, a=arrays: linear_layer(*map(ctx.from_numpy, a)), limit=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3, 33])
@pytest.mark.parametrize("m", [1, 33, 65])
@pytest.mark.parametrize("dtype", [F32, Q4_0], ids=str)
def test_halves_of_a_weight_are_joined(any_gpu, check, rng, dtype, m, n):
    data, x = weight_bytes(rng, 2 * m, 64, dtype, 1 / 8), rng.standard_normal((n, 64), "f4")

    def build(ctx):
        both = weight(ctx._executor, 2 * m, 64, dtype, data)
        return linear(both, tensor(ctx, x), epilogue=Epilogue("silu"))

    check(any_gpu, build, limit=LIMIT_OF_ONE)


def test_halves_that_cannot_be_joined_are_refused(full, split, rng):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"weight is \(4, 33\) .* groups of 32"):
            linear(ctx.zeros(4, 33), ctx.zeros(1, 33), epilogue=Epilogue("silu"))
        with pytest.raises(ShapeError, match=r"4 rows and 'tanh', needs .* one of silu, gelu"):
            linear(ctx.zeros(4, 32), ctx.zeros(1, 32), epilogue=Epilogue("tanh"))
    with Context(split) as ctx:
        both = weight(split, 960, 256, Q4_0, weight_bytes(rng, 960, 256, Q4_0))
        with pytest.raises(DeviceError, match=r"\(960, 256\) lies in 3 bindings .* needs one"):
            linear(both, ctx.zeros(1, 256), epilogue=Epilogue("silu")).numpy()
