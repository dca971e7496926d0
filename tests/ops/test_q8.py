import numpy as np
import pytest

from tests.blocks import random_blocks, sampled
from tests.ops.operands import (
    SUMMED,
    beside_ties,
    between,
    limit_of_bytes,
    tensor,
    weight,
    weight_bytes,
)
from tests.shares import rare, rare_on
from wgpu_backend.dtypes import F16, F32, MXFP4, Q4_0, Q4_1, Q4_K, Q5_1, Q6_K, Q8_0, U32
from wgpu_backend.errors import DeviceError, DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.linear.activation_rounding import q8_pair_reference as numpy_pair
from wgpu_backend.ops.linear.attributes import Q8, Q8_PAIR, Epilogue, Prologue
from wgpu_backend.ops.linear.gates import GATES, fits_gated
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import FORMATS, fits_q8, q8_activations, q8_weighted
from wgpu_backend.ops.linear.q8_rounding import q8_activations_reference as numpy_activations
from wgpu_backend.testing import nmse, values_of

LIMIT, LIMIT_OF_ONE = SUMMED, 1e-8


def product(executor, check, rng, dtype, m, n, k):
    data = weight_bytes(rng, m, k, dtype, k**-0.5)
    x = beside_ties(rng.standard_normal((n, k), "f4"))

    def multiplied(ctx):
        return linear(
            weight(ctx._executor, m, k, dtype, data), q8_activations(tensor(ctx, x)), prologue=Q8
        )

    check(
        executor, multiplied, limit=limit_of_bytes(executor, dtype) if m * n > 1 else LIMIT_OF_ONE
    )


@pytest.mark.parametrize(("m", "n"), [(1, 1), (33, 3), (257, 1)])
@pytest.mark.parametrize("dtype", sampled(FORMATS, "baseline"), ids=str)
def test_every_format_times_few_columns(any_gpu, check, rng, dtype, m, n):
    product(any_gpu, check, rng, dtype, m, n, 512)


@pytest.mark.parametrize(("m", "n"), [(33, 64), (64, 9), (65, 33)])
@pytest.mark.parametrize("dtype", [Q4_0, Q6_K, Q8_0], ids=str)
def test_many_columns(any_gpu, check, rng, dtype, m, n):
    product(any_gpu, check, rng, dtype, m, n, 256)


class Same:
    """A generator whose bytes are all one, for blocks whose quants are."""

    def __init__(self, rng, byte):
        self.uniform = rng.uniform
        self._byte = byte

    def integers(self, _low, _high, shape, dtype):
        return np.full(shape, self._byte, dtype)


@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_the_largest_sums_fit_their_integers(any_gpu, check, rng, dtype, n):
    rows = [0x00, 0xFF, 0x7F, 0x80, 0x81, 0x88, 0x77, 0x0F, 0xF0, 0x08, 0x5A, 0xBF]
    count = 256 // dtype.block
    data = b"".join(random_blocks(Same(rng, byte), dtype, count, 1.0).tobytes() for byte in rows)
    ones = np.ones(256, "f4")
    signs = [ones, -ones, *(np.tile(np.repeat([1, -1], k), 128 // k).astype("f4") for k in (1, 2))]
    for first in range(len(signs)):
        x = np.resize(signs[first:] + signs[:first], (n, 256))

        def multiplied(ctx, x=x):
            weights = weight(ctx._executor, len(rows), 256, dtype, data)
            return linear(weights, q8_activations(tensor(ctx, x)), prologue=Q8)

        check(any_gpu, multiplied, limit=LIMIT)


@pytest.mark.parametrize("dtype", sampled(FORMATS), ids=str)
def test_every_format_in_tiles(executors, check, rng, dtype):
    product(executors("wide"), check, rng, dtype, 65, 33, 256)


@pytest.mark.parametrize("k", [32, 96, 2080])
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("dtype", [Q4_0, Q5_1, MXFP4], ids=str)
def test_rows_of_any_number_of_groups(any_gpu, check, rng, dtype, n, k):
    product(any_gpu, check, rng, dtype, 35, n, k)


@pytest.mark.parametrize("k", [256, 768])
def test_rows_of_any_number_of_super_blocks(any_gpu, check, rng, k):
    product(any_gpu, check, rng, Q4_K, 35, 3, k)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_weights_in_parts(split, check, rng, dtype):
    data = weight_bytes(rng, 960, 256, dtype, 1 / 16)
    x = beside_ties(rng.standard_normal((1, 256), "f4"))

    def multiplied(ctx):
        return linear(
            weight(ctx._executor, 960, 256, dtype, data),
            q8_activations(tensor(ctx, x)),
            prologue=Q8,
        )

    assert len(weight(split, 960, 256, dtype, data).storage.handle) > 1
    check(split, multiplied, limit=LIMIT)


@pytest.mark.parametrize("dtype", [Q4_1, Q6_K], ids=str)
def test_rows_of_a_weight_may_be_sliced(any_gpu, check, rng, dtype):
    data = weight_bytes(rng, 48, 256, dtype, 1 / 16)
    x = beside_ties(rng.standard_normal((2, 256), "f4"))

    def multiplied(ctx):
        part = weight(ctx._executor, 48, 256, dtype, data).slice(0, 17, 40)
        return linear(part, q8_activations(tensor(ctx, x)), prologue=Q8)

    check(any_gpu, multiplied, limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_rounding_costs_less_than_a_thousandth(full, rng, dtype):
    data = weight_bytes(rng, 65, 512, dtype, 1 / 16)
    x = rng.standard_normal((3, 512), "f4")

    def made(product):
        def build(ctx):
            return product(weight(ctx._executor, 65, 512, dtype, data), tensor(ctx, x))

        return values_of(full, build)

    exact = made(lambda w, x: w.mulmat(x))
    assert nmse(made(lambda w, x: linear(w, q8_activations(x), prologue=Q8)), exact) < 1e-3


@pytest.mark.parametrize("n", [1, 3, 33])
@pytest.mark.parametrize("residual", [False, True], ids=["bias", "residual"])
def test_a_sum_goes_into_the_product(any_gpu, check, rng, n, residual):
    data = weight_bytes(rng, 67, 256, Q4_0)
    x = beside_ties(rng.standard_normal((n, 256), "f4"))
    addend = rng.standard_normal((n, 67), "f4")

    def added(ctx):
        rows = q8_activations(tensor(ctx, x))
        term = tensor(ctx, addend if residual else addend[0])
        return linear(weight(ctx._executor, 67, 256, Q4_0, data), rows, term, prologue=Q8)

    check(any_gpu, added, limit=LIMIT)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 33])
@pytest.mark.parametrize("dtype", [Q4_0, Q6_K, pytest.param(Q8_0, marks=rare_on("wide"))], ids=str)
def test_products_of_two_parts_are_added(any_gpu, check, rng, dtype, n):
    pairs(any_gpu, check, rng, dtype, 67, n, 256)


@pytest.mark.parametrize("k", [32, 96, 896])
def test_products_of_two_parts_of_any_number_of_groups(any_gpu, check, rng, k):
    pairs(any_gpu, check, rng, Q4_0, 35, 1, k)


def test_products_of_two_parts_with_a_weight_in_parts(split, check, rng):
    pairs(split, check, rng, Q8_0, 960, 3, 256)


def pairs(executor, check, rng, dtype, m, n, k):
    data = weight_bytes(rng, m, k, dtype, k**-0.5)
    # Split once, on the host: what is left for the second part hangs on digits of the first.
    parts = numpy_pair(rng.standard_normal((n, k), "f4"))

    def multiplied(ctx):
        w = weight(ctx._executor, m, k, dtype, data)
        return linear(w, tensor(ctx, parts, U32), prologue=Q8_PAIR)

    check(
        executor, multiplied, limit=limit_of_bytes(executor, dtype) if m * n > 1 else LIMIT_OF_ONE
    )


@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize("m", [1, 33, 65])
@pytest.mark.parametrize("dtype", [Q4_0, Q6_K], ids=str)
def test_halves_of_a_weight_are_joined(any_gpu, check, rng, dtype, m, n):
    joined(any_gpu, check, rng, dtype, m, n, "silu")


@pytest.mark.parametrize("n", [1, pytest.param(33, marks=rare)])
@pytest.mark.parametrize("activation", GATES)
def test_a_gate_goes_through_its_activation(any_gpu, check, rng, activation, n):
    joined(any_gpu, check, rng, Q8_0, 9, n, activation)


def joined(executor, check, rng, dtype, m, n, activation):
    data = weight_bytes(rng, 2 * m, 256, dtype, 1 / 16)
    x = beside_ties(rng.standard_normal((n, 256), "f4"))

    def build(ctx):
        rows = q8_activations(tensor(ctx, x))
        both = weight(ctx._executor, 2 * m, 256, dtype, data)
        return linear(both, rows, prologue=Q8, epilogue=Epilogue(activation))

    # An error function of f32 costs more digits than a sum.
    check(executor, build, limit=LIMIT_OF_ONE)


def test_halves_in_several_bindings_are_refused(split, rng):
    data = weight_bytes(rng, 960, 256, Q4_0)
    with Context(split) as ctx:
        both = weight(split, 960, 256, Q4_0, data)
        assert not fits_gated(both)
        rows = q8_activations(ctx.zeros(1, 256))
        with pytest.raises(DeviceError, match=r"\(960, 256\) lies in 3 bindings .* needs one"):
            linear(both, rows, prologue=Q8, epilogue=Epilogue("silu")).numpy()


def test_the_same_rounding_as_numpy(any_gpu, rng):
    x = (rng.standard_normal((5, 3, 64)) * 10.0 ** rng.integers(-9, 9, (5, 3, 1))).astype("f4")
    x[1] = 0
    x[2, 0, :32] = 1e-38
    x[3, 0, ::2] = 0.5  # halves of a step: 63.5 steps of a largest of 1
    x[3, 0, 1::2] = 1
    same_groups(values_of(any_gpu, lambda ctx: q8_activations(tensor(ctx, x))), x)


def same_groups(got, x):
    """Quants and scale bit for bit, and sums of these quants; squares but for their sum's order."""
    want = numpy_activations(x)
    (quants, tail), (expected, other) = (parts_of(words) for words in (got, want))
    groups = x.reshape(quants.shape)
    with np.errstate(invalid="ignore"):
        steps = groups * 127 / np.abs(groups).max(axis=-1, keepdims=True)
    np.testing.assert_array_equal(quants[~between(steps)], expected[~between(steps)])
    assert np.abs(quants - expected).max() <= 1
    np.testing.assert_array_equal(tail[..., 0], other[..., 0])
    for place, count in ((1, 32), (2, 16)):
        sums = quants[..., :count].sum(axis=-1).astype("f4")
        np.testing.assert_array_equal(tail[..., place], sums * tail[..., 0])
    np.testing.assert_allclose(tail[..., 3], other[..., 3], rtol=1e-6, atol=1e-44)


def parts_of(words):
    """Quants, and what stands behind them."""
    quants, tail = (np.ascontiguousarray(part) for part in (words[..., :8], words[..., 8:]))
    return quants.view("i1").astype("i4"), tail.view("f4")


@pytest.mark.parametrize("shape", [(64,), (1, 96), (5, 3, 64)], ids=str)
def test_rows_are_weighted_before_they_are_rounded(any_gpu, rng, shape):
    x, scale = rng.standard_normal(shape, "f4"), rng.standard_normal(shape[-1], "f4")
    got = values_of(any_gpu, lambda ctx: q8_weighted(tensor(ctx, x), tensor(ctx, scale)))
    squares = np.ascontiguousarray(got[..., 11]).view("f4")
    np.testing.assert_allclose(squares, (x.reshape(*shape[:-1], -1, 32) ** 2).sum(-1), rtol=1e-6)
    got[..., 11] = numpy_activations(x * scale)[..., 11]
    same_groups(got, x * scale)


@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize("dtype", [Q4_0, pytest.param(Q6_K, marks=rare_on("wide"))], ids=str)
@pytest.mark.parametrize("kind", ["alone", "bias", "gated"])
def test_a_product_makes_up_for_a_norm(any_gpu, check, rng, kind, dtype, n):
    data = weight_bytes(rng, 66, 512, dtype, 1 / 16)
    scale, bias = rng.standard_normal(512, "f4"), rng.standard_normal(66, "f4")
    x = beside_ties(3 * rng.standard_normal((n, 512), "f4") * scale) / scale

    def normed(ctx):
        rows = q8_weighted(tensor(ctx, x), tensor(ctx, scale))
        w = weight(ctx._executor, 66, 512, dtype, data)
        if kind == "gated":
            return linear(w, rows, prologue=Prologue("q8", 0.5), epilogue=Epilogue("silu"))
        if kind == "bias":
            return linear(w, rows, tensor(ctx, bias), prologue=Prologue("q8", 0.5))
        return linear(w, rows, prologue=Prologue("q8", 0.5))

    check(any_gpu, normed, limit=LIMIT_OF_ONE)


def test_a_norm_that_a_product_makes_up_for_is_the_norm(any_gpu, rng):
    data, x = weight_bytes(rng, 40, 256, Q8_0, 1 / 16), 3 * rng.standard_normal((3, 256), "f4")
    scale = rng.standard_normal(256, "f4")

    def normed(ctx):
        rows = q8_weighted(tensor(ctx, x), tensor(ctx, scale))
        return linear(
            weight(ctx._executor, 40, 256, Q8_0, data), rows, prologue=Prologue("q8", 0.1)
        )

    def apart(ctx):
        rows = tensor(ctx, x).rms_norm(tensor(ctx, scale), eps=0.1)
        return weight(ctx._executor, 40, 256, Q8_0, data).mulmat(rows)

    assert nmse(values_of(any_gpu, normed), values_of(any_gpu, apart)) < 1e-3


def test_rows_of_zeros_that_lack_a_norm_give_zero(any_gpu, rng):
    data = weight_bytes(rng, 9, 64, Q4_0)
    with Context(any_gpu) as ctx:
        rows = q8_weighted(ctx.zeros(2, 64), tensor(ctx, np.ones(64, "f4")))
        y = linear(weight(any_gpu, 9, 64, Q4_0, data), rows, prologue=Prologue("q8", 1e-5)).numpy()
    assert not y.any()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_value_that_is_not_finite_spoils_its_row_alone(any_gpu, rng, bad):
    data, x = weight_bytes(rng, 9, 64, Q4_0), rng.standard_normal((3, 64), "f4")
    x[1, 40] = bad
    with Context(any_gpu) as ctx:
        w = weight(any_gpu, 9, 64, Q4_0, data)
        y = linear(w, q8_activations(tensor(ctx, x)), prologue=Q8).numpy()
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


def test_groups_of_zeros_give_zero():
    groups = numpy_activations(np.zeros((2, 64), "f4"))
    assert groups.shape == (2, 2, 12)
    assert not groups.any()


@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 3, 64)], ids=str)
def test_leading_axes_of_x_stay(gpu, check, rng, shape):
    data, x = weight_bytes(rng, 9, 64, Q4_0), rng.standard_normal(shape, "f4")

    def multiplied(ctx):
        return linear(
            weight(ctx._executor, 9, 64, Q4_0, data), q8_activations(tensor(ctx, x)), prologue=Q8
        )

    check(gpu, multiplied, limit=LIMIT)


def test_weights_that_fit(full, rng):
    with Context(full) as ctx:
        assert fits_q8(ctx.from_bytes(Q4_0, weight_bytes(rng, 9, 64, Q4_0), 9, 64))
        assert not fits_q8(ctx.zeros(9, 64))
        assert fits_gated(ctx.zeros(8, 64))
        assert not fits_gated(ctx.zeros(9, 64))


def test_operands_that_do_not_fit_are_refused(full, rng):
    with Context(full) as ctx:
        w = ctx.from_bytes(Q4_0, weight_bytes(rng, 9, 64, Q4_0), 9, 64)
        rows = q8_activations(ctx.zeros(2, 64))
        with pytest.raises(ShapeError, match="rows of x have 33 values, needs a multiple of 32"):
            q8_activations(ctx.zeros(2, 33))
        with pytest.raises(ShapeError, match=r"q8_weighted: weight is \(32,\), rows have 64"):
            q8_weighted(ctx.zeros(2, 64), ctx.zeros(32))
        with pytest.raises(ShapeError, match=r"x is \(2, 1, 12\), rows of weight have 64"):
            linear(w, q8_activations(ctx.zeros(2, 32)), prologue=Q8)
        with pytest.raises(ShapeError, match=r"x is \(3, 2, 12\), .* needs x of \(..., 2, 2, 12\)"):
            linear(w, q8_activations(ctx.zeros(3, 64)), prologue=Q8_PAIR)
        with pytest.raises(DTypeError, match="weight is f32, needs q4_0"):
            linear(ctx.zeros(9, 64), rows, prologue=Q8)
        with pytest.raises(ShapeError, match=r"addend is \(4,\), needs \(9,\) or \(2, 9\)"):
            linear(w, rows, ctx.zeros(4), prologue=Q8)
        with pytest.raises(ShapeError, match="9 rows and 'silu', needs an even number"):
            linear(w, rows, prologue=Q8, epilogue=Epilogue("silu"))
        with pytest.raises(DTypeError, match="q8_activations: x is f16, needs f32"):
            q8_activations(ctx.zeros(2, 64, dtype=F16))
        assert linear(w, rows, prologue=Q8).spec.dtype == F32
