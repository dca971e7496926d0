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
    weight,
    weight_bytes,
)
from wgpu_backend.dtypes import BF16, F16, F32, I32, Q4_0, U32
from wgpu_backend.errors import ContextError, DTypeError, ShapeError
from wgpu_backend.ml.context import Context

# Dequantised values are a product and a sum of f32: the last bit may differ, no more.
LAST_BIT = 1e-13


@pytest.mark.parametrize("cols", [256, 768])
@pytest.mark.parametrize("dtype", WEIGHTS, ids=str)
def test_rows_of_every_format(any_executor, check, rng, dtype, cols):
    data = weight_bytes(rng, 33, cols, dtype)
    ids = np.array([32, 0, 5, 5, 31, 1])
    check(
        any_executor,
        lambda ctx: ctx.from_bytes(dtype, data, 33, cols).rows(ctx.from_numpy(ids)),
        limit=LAST_BIT,
    )


@pytest.mark.parametrize("dtype", WEIGHTS, ids=str)
def test_rows_of_a_weight_in_parts(split, check, rng, dtype):
    data = weight_bytes(rng, 777, 256, dtype)
    ids = rng.integers(0, 777, 33)
    ids[:3] = 776, 0, 400

    def looked_up(ctx):
        return weight(ctx._executor, 777, 256, dtype, data).rows(ctx.from_numpy(ids))

    check(split, looked_up, limit=LAST_BIT)


def test_rows_of_a_slice_of_a_block_weight(executor, check, rng):
    data = weight_bytes(rng, 9, 64, Q4_0)
    check(
        executor,
        lambda ctx: ctx.from_bytes(Q4_0, data, 9, 64)[3:8].rows(ctx.from_numpy([4, 0])),
        limit=LAST_BIT,
    )


def test_columns_of_a_block_weight_are_refused(full, rng):
    data = weight_bytes(rng, 9, 64, Q4_0)
    with (
        Context(full) as ctx,
        pytest.raises(ShapeError, match=r"rows: a q4_0 .* strides .64, 1., needs"),
    ):
        ctx.from_bytes(Q4_0, data, 9, 64).slice(1, 0, 32).rows(ctx.from_numpy([4, 0]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("cols", [4, 36, 256])
def test_set_rows_writes_and_converts(executor, check, rng, cols, dtype):
    x, ids = rng.standard_normal((5, cols), "f4"), np.array([8, 0, 3, 4, 6])

    def written(ctx):
        return ctx.zeros(9, cols, dtype=dtype).set_rows(tensor(ctx, x), ctx.from_numpy(ids))

    check(executor, written, limit=0)


@pytest.mark.parametrize(("layout", "dtype"), VIEWS, ids=str)
def test_set_rows_takes_views_of_every_type(executor, check, rng, layout, dtype):
    x, ids = rng.standard_normal((3, 12), "f4"), np.array([1, 4, 2])
    source = LAYOUTS[layout]

    def written(ctx):
        return ctx.zeros(5, 12).set_rows(source(ctx, x, dtype), ctx.from_numpy(ids))

    check(executor, written, limit=0)


def test_set_rows_writes_into_a_view(executor, check, rng):
    x, ids = rng.standard_normal((2, 4), "f4"), np.array([2, 0])

    def written(ctx):
        cache = ctx.zeros(9, 4)
        ctx.compute(cache[4:7].set_rows(tensor(ctx, x), ctx.from_numpy(ids)))
        return cache

    check(executor, written, limit=0)


@pytest.mark.parametrize("outside", [-1, 9, 2**31 - 1, -(2**31)])
def test_rows_with_ids_outside_are_dropped(executor, check, rng, outside):
    x, ids = rng.standard_normal((3, 8), "f4"), np.array([5, outside, 0])

    def written(ctx):
        return ctx.zeros(9, 8).set_rows(tensor(ctx, x), ctx.from_numpy(ids))

    check(executor, written, limit=0)


def test_other_rows_keep_their_values(executor, check, rng):
    x, y = rng.standard_normal((9, 8), "f4"), rng.standard_normal((2, 8), "f4")

    def written(ctx):
        cache = ctx.zeros(9, 8, dtype=F16)
        ctx.compute(cache.set_rows(tensor(ctx, x), ctx.from_numpy(np.arange(9))))
        return cache.set_rows(tensor(ctx, y), ctx.from_numpy([7, 1]))

    check(executor, written, limit=0)


def test_set_rows_refuses_other_widths(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match=r"x is \(2, 12\), dst is \(9, 8\)"):
        ctx.zeros(9, 8).set_rows(ctx.zeros(2, 12), ctx.from_ints([0, 1]))


@pytest.mark.parametrize("cols", [3, 6])
def test_set_rows_does_not_convert_rows_of_odd_length(full, cols):
    with (
        Context(full) as ctx,
        pytest.raises(ShapeError, match=rf"f16 into \(9, {cols}\) f32 .* of 4"),
    ):
        ctx.zeros(9, cols).set_rows(ctx.zeros(2, cols, dtype=F16), ctx.from_ints([0, 1]))


def test_set_rows_does_not_convert_into_a_strided_matrix(full):
    with Context(full) as ctx:
        strided = ctx.zeros(8, 8, dtype=F16).permute(1, 0)
        with pytest.raises(ShapeError, match=r"strides \(1, 8\) .* dense dst"):
            strided.set_rows(ctx.zeros(2, 8), ctx.from_ints([0, 1]))


@pytest.mark.parametrize("cols", [1, 3, 6, 33])
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_set_rows_of_one_type_moves_bits(executor, rng, dtype, cols):
    data = anything(rng, dtype, (4, cols))
    base = anything(rng, dtype, (cols, 7))
    ids = np.array([5, -1, 0, 3])
    with Context(executor) as ctx:
        kept = ctx.zeros(cols, 7, dtype=dtype)
        ctx.compute(plain(ctx, base, dtype).copy(kept))
        ctx.compute(kept.permute(1, 0).set_rows(plain(ctx, data, dtype), ctx.from_numpy(ids)))
        got = bits(kept)
    want = base.copy()
    want[:, [5, 0, 3]] = data[[0, 2, 3]].T
    np.testing.assert_array_equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["dense", "permuted", "stepped"])
@pytest.mark.parametrize("dtype", [d for d in PLAIN if d not in FLOATS], ids=str)
def test_rows_of_other_types_are_moved(executor, rng, dtype, layout):
    data = anything(rng, dtype, (7, 5))
    with Context(executor) as ctx:
        x = plain(ctx, data, dtype)
        if layout == "permuted":
            x = plain(ctx, data.T.copy(), dtype).permute(1, 0)
        if layout == "stepped":
            x = plain(ctx, np.repeat(data, 3, axis=0), dtype)[1::3]
        got = bits(x.rows(ctx.from_numpy([6, 0, 0, 3])))
    np.testing.assert_array_equal(got, data[[6, 0, 0, 3]])


def test_set_rows_refuses_to_write_into_a_constant(full):
    with Context(full) as ctx, pytest.raises(ContextError, match="set_rows: dst is an input"):
        ctx.from_numpy(np.zeros((3, 4), "f4")).set_rows(ctx.zeros(1, 4), ctx.from_ints([0]))


def test_set_rows_refuses_to_read_what_it_writes(full):
    with Context(full) as ctx:
        cache = ctx.zeros(8, 4)
        with pytest.raises(ShapeError, match="set_rows: x is a view of dst"):
            cache.set_rows(cache[:2], ctx.from_ints([6, 7]))


def test_set_rows_does_not_convert_to_or_from_integers(full):
    with Context(full) as ctx:
        with pytest.raises(DTypeError, match="set_rows: x is f32, needs i32"):
            ctx.zeros(2, 32, dtype=I32).set_rows(ctx.zeros(1, 32), ctx.from_ints([0]))
        with pytest.raises(DTypeError, match="set_rows: x is i32, needs f32, f16, bf16"):
            ctx.zeros(2, 32).set_rows(ctx.zeros(1, 32, dtype=I32), ctx.from_ints([0]))


def test_ids_must_be_integers(full):
    with Context(full) as ctx:
        with pytest.raises(DTypeError, match="rows: ids is f32, needs i32"):
            ctx.zeros(3, 4).rows(ctx.zeros(2))
        with pytest.raises(DTypeError, match="set_rows: ids is u32, needs i32"):
            ctx.zeros(3, 4).set_rows(ctx.zeros(2, 4), ctx.zeros(2, dtype=U32))


def test_rows_are_taken_from_matrices(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match=r"rows: x .* 1 axes, needs 2 to 4"):
        ctx.zeros(3).rows(ctx.from_ints([0]))


@pytest.mark.parametrize("shape", [(65, 257), (5, 1300)], ids=str)
def test_argmax_takes_the_first_of_equals(any_executor, check, rng, shape):
    x = rng.integers(0, 3, shape).astype("f4")
    check(any_executor, lambda ctx: tensor(ctx, x).argmax(), limit=0)


def test_argmax_of_infinities(any_executor, check):
    x = np.full((4, 99), -np.inf, "f4")
    x[1, 77], x[2, 3], x[3, 98] = -3e38, np.inf, -1
    check(any_executor, lambda ctx: tensor(ctx, x).argmax(), limit=0)


@pytest.mark.slow
def test_argmax_of_more_rows_than_65535(full, check, rng):
    x = rng.standard_normal((65535 * 2 + 7, 3), "f4")
    check(full, lambda ctx: tensor(ctx, x).argmax(), limit=0)


def test_argmax_refuses_rows_without_values(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match="argmax: rows of x have 0 values"):
        ctx.zeros(3, 0).argmax()


def test_argmax_refuses_a_scalar(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match="0 axes, needs 1 to 4"):
        ctx.zeros().argmax()


def test_rows_widen_halves_exactly(executor, check, rng):
    for dtype in (F32, F16, BF16):
        data = weight_bytes(rng, 3, 33, dtype)
        check(
            executor,
            lambda ctx, d=dtype, b=data: ctx.from_bytes(d, b, 3, 33).rows(ctx.from_numpy([2, 1])),
            limit=0,
        )
