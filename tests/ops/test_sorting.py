import numpy as np
import pytest

from tests.ops.operands import FLOATS, tensor
from wgpu_backend.dtypes import BOOL, F16, F32, F64, I8, I16, I32, U8, U16, U32
from wgpu_backend.errors import DTypeError, OptionError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.sampling.sorting import select_top_k, sort_keys


def argsort(device, x, dtype=F32, **options):
    with Context(device) as ctx:
        return tensor(ctx, x, dtype).argsort(**options).numpy()


@pytest.mark.parametrize("cols", [1, 2, 3, 33, 257, 1023, 1024, 1025, 2049, 5000])
def test_argsort_of_odd_lengths(any_gpu, check, rng, cols):
    x = rng.standard_normal((3, cols), "f4")
    check(any_gpu, lambda ctx: tensor(ctx, x).argsort(), limit=0)
    np.testing.assert_array_equal(argsort(any_gpu, x), np.argsort(x, axis=-1, kind="stable"))


@pytest.mark.slow
@pytest.mark.parametrize("cols", [65536, 262144, 262145])
def test_argsort_of_long_rows(any_gpu, rng, cols):
    x = rng.integers(0, 5000, (1, cols)).astype("f4")
    np.testing.assert_array_equal(argsort(any_gpu, x), np.argsort(x, axis=-1, kind="stable"))


@pytest.mark.slow
@pytest.mark.parametrize("cols", [700, 3000])
def test_equal_values_keep_their_order(any_gpu, rng, cols):
    x = rng.integers(0, 4, (5, cols)).astype("f4")
    np.testing.assert_array_equal(argsort(any_gpu, x), np.argsort(x, axis=-1, kind="stable"))
    got = argsort(any_gpu, x, descending=True)
    np.testing.assert_array_equal(got, np.argsort(-x, axis=-1, kind="stable"))


@pytest.mark.parametrize("cols", [90, 2000])
def test_argsort_orders_what_is_not_finite_as_numpy(any_gpu, rng, cols):
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-38]
    x = rng.choice(np.array(special, "f4"), (4, cols))
    np.testing.assert_array_equal(argsort(any_gpu, x), np.argsort(x, axis=-1, kind="stable"))


def test_integers_at_their_bounds(gpu):
    x = np.array([0, -1, 2**31 - 1, -(2**31), 1], "i4")
    np.testing.assert_array_equal(argsort(gpu, x, I32), [3, 1, 0, 4, 2])


@pytest.mark.parametrize("order", [1, -1])
def test_sorted_and_reversed_rows(any_gpu, order):
    x = np.arange(4097, dtype="f4")[::order].copy()
    np.testing.assert_array_equal(argsort(any_gpu, x), np.argsort(x, kind="stable"))


@pytest.mark.slow
def test_argsort_of_many_short_rows(full, rng):
    x = rng.standard_normal((70001, 3), "f4")
    np.testing.assert_array_equal(argsort(full, x), np.argsort(x, axis=-1, kind="stable"))


@pytest.mark.parametrize("dtype", [*FLOATS, I32], ids=str)
@pytest.mark.parametrize(("shape", "k"), [((33,), 1), ((2, 3, 300), 5), ((3, 2500), 1000)])
def test_top_k_is_the_head_of_the_descending_order(any_gpu, check, rng, shape, k, dtype):
    x = (rng.standard_normal(shape) * 50).astype("f4")
    check(any_gpu, lambda ctx: tensor(ctx, x, dtype).top_k(k), limit=0)
    if dtype == F32:
        with Context(any_gpu) as ctx:
            got = tensor(ctx, x).top_k(k).numpy()
        np.testing.assert_array_equal(got, np.argsort(-x, axis=-1, kind="stable")[..., :k])


@pytest.mark.slow
def test_rows_whose_columns_never_share_a_word_with_keys(full, rng):
    x = rng.integers(0, 70000, (1, (1 << 22) + 5)).astype("f4")
    np.testing.assert_array_equal(argsort(full, x), np.argsort(x, axis=-1, kind="stable"))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "k"), [((70001, 100), 5), ((0, 5000), 300), ((0, 5000), 3)])
def test_top_k_of_very_many_rows_and_of_none(full, rng, shape, k):
    x = rng.integers(0, 50, shape).astype("f4")
    with Context(full) as ctx:
        got = tensor(ctx, x).top_k(k).numpy()
    np.testing.assert_array_equal(got, np.argsort(-x, axis=-1, kind="stable")[:, :k])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*FLOATS, I32], ids=str)
@pytest.mark.parametrize(("shape", "k"), [((2, 9001), 300), ((1, 40003), 257), ((3, 5000), 620)])
def test_top_k_by_the_maxima_of_blocks(any_gpu, check, rng, shape, k, dtype):
    x = (rng.standard_normal(shape) * 50).round().astype("f4")  # with values that are equal
    check(any_gpu, lambda ctx: tensor(ctx, x, dtype).top_k(k), limit=0)
    with Context(any_gpu) as ctx:
        got = tensor(ctx, x, dtype).top_k(k).numpy()
    np.testing.assert_array_equal(got, np.argsort(-x, axis=-1, kind="stable")[..., :k])


@pytest.mark.slow
@pytest.mark.parametrize("k", [5, 300])
def test_top_k_of_very_many_values(any_gpu, rng, k):
    x = rng.integers(0, 9000, (5, 262144 - 7)).astype("f4")
    with Context(any_gpu) as ctx:
        got = tensor(ctx, x).top_k(k).numpy()
    np.testing.assert_array_equal(got, np.argsort(-x, axis=-1, kind="stable")[:, :k])


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_top_k_of_sorted_rows_and_of_equal_ones(any_gpu, order):
    x = np.stack([np.arange(9001)[::order], np.zeros(9001), np.full(9001, -np.inf)]).astype("f4")
    x[2, 8999] = np.nan
    with Context(any_gpu) as ctx:
        got = tensor(ctx, x).top_k(400).numpy()
    np.testing.assert_array_equal(got[:2], np.argsort(-x[:2], axis=-1, kind="stable")[:, :400])
    np.testing.assert_array_equal(got[2], [8999, *range(399)])


@pytest.mark.slow
def test_lowest_integers_are_found_in_order(gpu):
    x = np.full((1, 9001), -(2**31), "i4")
    x[0, 8990] = 7
    with Context(gpu) as ctx:
        got = tensor(ctx, x, I32).top_k(500).numpy()
    np.testing.assert_array_equal(got[0], [8990, *range(499)])


@pytest.mark.slow
def test_top_k_of_a_whole_long_row(full, rng):
    x = rng.standard_normal((1, 262144), "f4")
    with Context(full) as ctx:
        got = tensor(ctx, x).top_k(262144).numpy()
    np.testing.assert_array_equal(got, np.argsort(-x, axis=-1, kind="stable"))


@pytest.mark.slow
@pytest.mark.parametrize("k", [257, 3000])
def test_nan_is_among_the_largest(gpu, rng, k):
    x = rng.standard_normal((2, 3000), "f4")
    x[0, 7], x[1, 2999] = np.nan, np.nan
    with Context(gpu) as ctx:
        got = tensor(ctx, x).top_k(k).numpy()
    np.testing.assert_array_equal(got[:, 0], [7, 2999])


@pytest.mark.parametrize("k", [0, -1, 301])
def test_top_k_refuses_k_out_of_range(full, k):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=f"top_k: k is {k}, needs 1 to"):
            ctx.zeros(2, 300).top_k(k)
        with pytest.raises(ShapeError, match=f"top_k: k is {k}, needs 1 to 300"):
            ctx.zeros(2, 300, dtype=I32).top_k(k)


def test_doubles_and_scalars_are_refused(full):
    with Context(full) as ctx:
        with pytest.raises(DTypeError, match="argsort: x is f64, needs"):
            ctx.zeros(3, dtype=F64).argsort()
        with pytest.raises(ShapeError, match=r"argsort: .* 0 axes, needs 1 to 8"):
            ctx.zeros().argsort()
        with pytest.raises(ShapeError, match=r"top_k: .* 0 axes, needs 1 to 8"):
            ctx.zeros().top_k(1)
        with pytest.raises(ShapeError, match=r"sort: axis 2, .* axes -2 to 1"):
            ctx.zeros(2, 3).sort(2)
        with pytest.raises(ShapeError, match="topk: k is 4, axis 1 needs 1 to 3"):
            ctx.zeros(2, 3).topk(4)
        with pytest.raises(OptionError, match="searchsorted: side is 'up', needs 'left' or"):
            ctx.zeros(3).searchsorted(ctx.zeros(2), "up")


def numbers(rng, dtype, shape):
    """Any values of a type that NumPy holds, some of them equal."""
    if dtype == BOOL or dtype in FLOATS:
        return rng.integers(0, 2, shape) if dtype == BOOL else rng.integers(-9, 9, shape) / 2
    info = np.iinfo(dtype.numpy)
    x = rng.integers(info.min, info.max, shape, endpoint=True)
    x.flat[:: max(x.size // 3, 1)] = info.max
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16, I32, U32, I16, U16, I8, U8, BOOL], ids=str)
def test_sort_of_every_type_along_every_axis(any_gpu, rng, dtype, descending):
    x = numbers(rng, dtype, (3, 40, 5)).astype(dtype.numpy)
    long = numbers(rng, dtype, (2, 1500)).astype(dtype.numpy)
    with Context(any_gpu) as ctx:
        for values, axis in ((x, 0), (x, 1), (x, -1), (long, -1)):
            rows = np.moveaxis(values, axis, -1)
            order = np.argsort(sort_keys(rows, descending), -1, kind="stable")
            given = ctx.from_numpy(values, dtype)
            got = np.moveaxis(given.argsort(axis, descending=descending).numpy(), axis, -1)
            np.testing.assert_array_equal(got, order)
            got = given.sort(axis, descending=descending)
            assert got.dtype == dtype
            want = np.sort(values, axis)
            want = np.flip(want, axis) if descending else want
            np.testing.assert_array_equal(got.numpy(), want)


def test_sort_of_six_axes(gpu, rng):
    x = rng.standard_normal((2, 3, 2, 3, 2, 5), "f4")
    with Context(gpu) as ctx:
        got = tensor(ctx, x).permute(5, 3, 4, 0, 2, 1).sort(1).numpy()
    np.testing.assert_array_equal(got, np.sort(x.transpose(5, 3, 4, 0, 2, 1), 1))


@pytest.mark.parametrize("dtype", [F32, I32, U32, U8, I16], ids=str)
@pytest.mark.parametrize(("cols", "k"), [(33, 33), (257, 3), (9001, 300)])
def test_largest_values_of_every_type(any_gpu, rng, dtype, cols, k):
    x = numbers(rng, dtype, (cols, 3)).astype(dtype.numpy)
    with Context(any_gpu) as ctx:
        got = ctx.from_numpy(x, dtype).topk(k, 0).numpy()
    np.testing.assert_array_equal(got, -np.sort(-x.astype("i8" if dtype != F32 else "f8"), 0)[:k])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [F32, F16, I32, U32, I8, U16], ids=str)
@pytest.mark.parametrize("length", [0, 1, 33, 257])
def test_searchsorted_of_every_type(gpu, rng, length, dtype, side):
    x = np.sort(numbers(rng, dtype, (length,)).astype(dtype.numpy)) if length else np.zeros(0)
    x = x.astype(dtype.numpy)
    v = np.concatenate([x, numbers(rng, dtype, (31,)).astype(dtype.numpy)]).reshape(1, -1)
    with Context(gpu) as ctx:
        got = ctx.from_numpy(x, dtype).searchsorted(ctx.from_numpy(v.T, dtype).T, side).numpy()
    np.testing.assert_array_equal(got, np.searchsorted(x, v, side))


def test_searchsorted_has_nan_behind_all(gpu):
    x = np.array([-np.inf, -1, 0, 2, np.inf, np.nan], "f4")
    with Context(gpu) as ctx:
        for side in ("left", "right"):
            got = ctx.from_numpy(x).searchsorted(ctx.from_numpy(x), side).numpy()
            np.testing.assert_array_equal(got, np.searchsorted(x, x, side))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*FLOATS, I32], ids=str)
@pytest.mark.parametrize(("rows", "cols", "k"), [(1, 1, 1), (3, 300, 300), (9, 2049, 257)])
def test_what_is_chosen_is_in_the_order_of_columns(any_gpu, check, rng, rows, cols, k, dtype):
    x = (rng.standard_normal((rows, cols)) * 9).round().astype("f4")  # with values that are equal
    check(any_gpu, lambda ctx: select_top_k(tensor(ctx, x, dtype), k=k), limit=0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_values_all_equal_are_chosen_from_the_front(any_gpu, value):
    with Context(any_gpu) as ctx:
        got = select_top_k(tensor(ctx, np.full((2, 600), value, "f4")), k=299).numpy()
    np.testing.assert_array_equal(got, [np.arange(299)] * 2)


@pytest.mark.parametrize("k", [0, 301])
def test_as_many_are_chosen_as_there_are(full, k):
    with (
        Context(full) as ctx,
        pytest.raises(ShapeError, match=f"select_top_k: k is {k}, needs 1 to 300"),
    ):
        select_top_k(ctx.zeros(2, 300), k=k)
