import numpy as np
import pytest

from tests.ops.operands import FLOATS, tensor
from wgpu_backend.dtypes import BF16, BOOL, F32, I8, I16, I32, U8, U16, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context

# Of the references, whose sums are in f64: partial sums in f32 keep some seven digits.
SUMS = 1e-11
NUMPY = {
    "sum": np.sum,
    "mean": np.mean,
    "variance": np.var,
    "stddev": np.std,
    "max": np.max,
    "min": np.min,
}
EXTREMES = ("max", "min")
AXES = [None, 0, -1, (0, 1), (1, 2), (0, 2), (0, 1, 2), ()]


def reduced(device, x, name, *args, dtype=F32, **options):
    with Context(device) as ctx:
        return getattr(tensor(ctx, x, dtype), name)(*args, **options).numpy()


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", NUMPY)
def test_every_choice_of_axes_agrees_with_numpy(any_executor, rng, name, axes, keep_dims):
    x = rng.uniform(0.5, 2, (3, 33, 65)).astype("f4")
    got = reduced(any_executor, x, name, axes, keep_dims=keep_dims)
    want = NUMPY[name](x.astype("f8"), axis=axes, keepdims=keep_dims)
    assert got.dtype == np.float32
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((300007,), 0), ((3, 8193), -1), ((70001, 3), 0), ((513, 4, 40), (0, 2)), ((2, 262144), 1)],
    ids=str,
)
@pytest.mark.parametrize("name", NUMPY)
def test_long_axes_are_folded_in_stages(any_executor, check, rng, name, shape, axes):
    x = rng.standard_normal(shape, "f4") + 1
    check(any_executor, lambda ctx: getattr(tensor(ctx, x), name)(axes), limit=SUMS)


@pytest.mark.parametrize("name", NUMPY)
def test_a_large_mean_does_not_cancel(executor, rng, name):
    x = (rng.standard_normal((4, 3000)) + 1e4).astype("f4")
    got = reduced(executor, x, name, -1)
    np.testing.assert_allclose(got, NUMPY[name](x.astype("f8"), axis=-1), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", NUMPY)
def test_infinities_and_nans_are_those_of_numpy(any_executor, name, axis):
    x = np.ones((5, 70), "f4")
    x[0, 5], x[1, 69], x[2, 0], x[3, 3], x[3, 64] = np.nan, np.inf, -np.inf, np.inf, -np.inf
    x[4, 6], x[4, 9] = -0.0, -3e18
    got = reduced(any_executor, x, name, axis)
    with np.errstate(all="ignore"):
        want = NUMPY[name](x.astype("f8"), axis=axis).astype("f4")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_negative_nans_count_as_nans(executor):
    bits = np.array([0xFFC00001, 0x3F800000, 0xBF800000], "u4")
    assert np.isnan(reduced(executor, bits.view("f4"), "max", 0))
    assert np.isnan(reduced(executor, bits.view("f4"), "min", 0))


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_of_bf16_stay_bf16(executor, name):
    with Context(executor) as ctx:
        assert getattr(ctx.zeros(3, 4, dtype=BF16), name)(0).dtype == BF16


def test_sums_of_halves_are_f32(executor, rng):
    with Context(executor) as ctx:
        total = ctx.from_numpy(np.full(5000, 100, "f2")).sum()
        assert total.dtype == F32
        assert total.numpy() == 500_000


def test_sum_rows_keeps_the_axis(executor, rng):
    x = rng.standard_normal((3, 5, 33), "f4")
    got = reduced(executor, x, "sum_rows")
    np.testing.assert_allclose(got, x.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_a_mean_of_nothing_is_nan(executor):
    assert np.isnan(reduced(executor, np.zeros((0, 3), "f4"), "mean", 0)).all()
    assert np.isnan(reduced(executor, np.zeros((0, 3), "f4"), "variance", 0)).all()
    assert reduced(executor, np.zeros((0, 3), "f4"), "mean", 1).shape == (0,)


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_of_nothing_are_refused(full, name):
    with Context(full) as ctx:
        assert getattr(ctx.zeros(0, 3), name)(1).numpy().shape == (0,)
        with pytest.raises(ShapeError, match=rf"{name}: x is \(0, 3\), .* 0 values, need at least"):
            getattr(ctx.zeros(0, 3), name)(0)


@pytest.mark.parametrize("name", NUMPY)
def test_axes_that_are_not_there_are_refused(full, name):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=f"{name}: axis 2, .* axes -2 to 1"):
            getattr(ctx.zeros(2, 3), name)((0, 2))
        with pytest.raises(ShapeError, match=rf"{name}: axes \(0, -2\) name one of 2 axes twice"):
            getattr(ctx.zeros(2, 3), name)((0, -2))


@pytest.mark.parametrize("axes", [0, 1, None], ids=str)
@pytest.mark.parametrize("dtype", [I32, U32, I16, U16, I8, U8, BOOL], ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all"])
def test_reductions_of_integers_are_exact(gpu, check, rng, name, dtype, axes):
    if dtype == BOOL and name in EXTREMES:
        pytest.skip("truth has any and all")
    info = None if dtype == BOOL else np.iinfo(dtype.numpy)
    x = rng.integers(*((0, 2) if info is None else (info.min, info.max)), (33, 70))
    x[:, :2], x[:2] = 0, 1

    def build(ctx):
        return getattr(ctx.from_numpy(x, dtype).T, name)(axes)

    check(gpu, build, limit=0)
    with Context(gpu) as ctx:
        got = build(ctx).numpy()
    own = x.T.astype(dtype.numpy)
    kind = {} if name not in ("sum", "prod") else {"dtype": "i4" if dtype.name[0] == "i" else "u4"}
    want = getattr(np, name)(own, axes, **kind)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(1,), (257,), (2, 9001), (9001, 2), (0, 3)], ids=str)
@pytest.mark.parametrize("name", ["prod", "logsumexp", "any", "all"])
def test_products_logarithms_and_truth_of_odd_sizes(gpu, check, rng, name, shape):
    x = rng.uniform(0.99, 1.01, shape).astype("f4")
    for axes in (None, 0, -1):
        # Each of 18,000 factors rounds the product once more.
        check(gpu, lambda ctx, axes=axes: getattr(tensor(ctx, x), name)(axes), limit=1e-10)


def test_logarithms_of_sums_overflow_only_where_they_do(gpu):
    ends = np.array([[1000, 999], [-1000, -1001], [np.inf, 0], [-np.inf, -np.inf]], "f4")
    more = np.array([[np.inf, np.inf], [-np.inf, 3], [np.nan, np.inf], [-np.inf, np.nan]], "f4")
    x = np.concatenate([ends, more])
    got = reduced(gpu, x, "logsumexp", -1)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, np.logaddexp.reduce(x.astype("f8"), -1), rtol=1e-6)
    long = reduced(gpu, np.repeat(x, 40, -1), "logsumexp", -1)
    np.testing.assert_allclose(long, got + np.log(40), rtol=1e-6)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "variance", "logsumexp"])
def test_eight_axes_that_do_not_join(gpu, check, rng, name):
    x = rng.uniform(0.9, 1.1, (2, 3, 2, 3, 2, 3, 2, 3)).astype("f4")
    order = (7, 3, 2, 6, 0, 5, 1, 4)
    for axes in ((0, 2, 4, 6), (1,), None):
        check(
            gpu,
            lambda ctx, axes=axes: getattr(tensor(ctx, x).permute(*order), name)(axes),
            limit=SUMS,
        )


@pytest.mark.filterwarnings("ignore:Degrees of freedom")
@pytest.mark.parametrize("ddof", [1, 2.5, 9])
@pytest.mark.parametrize("name", ["variance", "stddev"])
def test_variances_of_samples(gpu, rng, name, ddof):
    x = rng.standard_normal((3, 9), "f4")
    got = reduced(gpu, x, name, -1, ddof=ddof)
    with np.errstate(all="ignore"):
        want = NUMPY[name](x.astype("f8"), -1, ddof=ddof)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_l2_norm_of_short_rows_divides_by_eps(executor, check):
    x = np.array([[0, 0], [3e-3, 4e-3]], "f4")
    check(executor, lambda ctx: tensor(ctx, x).l2_norm(eps=0.1), limit=1e-13)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((70, 64), 0), ((1100, 8), 0), ((3, 50, 12), 1), ((40, 3, 8), (0, 1)), ((5, 40, 4), (0,))],
)
@pytest.mark.parametrize("name", NUMPY)
def test_columns_in_whole_vectors(any_gpu, check, rng, name, shape, axes, dtype):
    x = rng.standard_normal(shape, "f4") + 3
    check(any_gpu, lambda ctx: getattr(tensor(ctx, x, dtype), name)(axes), limit=SUMS)
    # The same from within a tensor: whole vectors still, then not.
    for first in (4, 3):
        check(
            any_gpu,
            lambda ctx, first=first: getattr(
                tensor(ctx, np.tile(x, 2), dtype).slice(-1, first, first + shape[-1]), name
            )(axes),
            limit=SUMS,
        )
