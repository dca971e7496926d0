import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor
from wgpu_backend.dtypes import F32, I32, U32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.sampling.sorting import select_top_k

pytestmark = pytest.mark.any_width


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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*FLOATS, I32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("descending", [False, True])
def test_argsort_of_views_of_every_type(gpu, check, rng, layout, dtype, descending):
    x = (rng.standard_normal((3, 5, 33)) * 9).astype("f4")
    check(
        gpu,
        lambda ctx: LAYOUTS[layout](ctx, x, dtype).argsort(descending=descending),
        limit=0,
    )


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


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 3)], ids=str)
def test_argsort_of_nothing(gpu, check, shape):
    check(gpu, lambda ctx: tensor(ctx, np.zeros(shape, "f4")).argsort(), limit=0)


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
def test_lowest_integers_are_found_before_the_end_of_the_row(gpu):
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


def test_unsigned_integers_and_scalars_are_refused(full):
    with Context(full) as ctx:
        with pytest.raises(DTypeError, match="argsort: x is u32, needs"):
            ctx.zeros(3, dtype=U32).argsort()
        with pytest.raises(ShapeError, match=r"argsort: .* 0 axes, needs 1 to 4"):
            ctx.zeros().argsort()
        with pytest.raises(ShapeError, match=r"top_k: .* 0 axes, needs 1 to 4"):
            ctx.zeros().top_k(1)


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
