"""Pooling over one to three axes, padding with values of a tensor, and im2col's way back."""

from typing import Any

import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, PLAIN, anything, bits, plain, tensor
from wgpu_backend.dtypes import I8, I32, U8
from wgpu_backend.errors import BackendError, DTypeError, ShapeError
from wgpu_backend.ml.context import Context

LIMIT = 1e-12
POOLS = [
    ((2, 33, 3), (3, 2, 1)),
    ((1, 257, 8), (4,)),
    ((2, 9, 11, 4), ((3, 2), (2, 1), ((1, 0), (0, 1)))),
    ((1, 8, 6, 5), (2, 2)),
    ((2, 5, 6, 7, 4), ((2, 3, 2), (1, 2, 3), 1)),
]


@pytest.mark.parametrize(("shape", "how"), POOLS, ids=str)
@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
def test_windows_are_folded(any_executor, check, rng, op, shape, how):
    x = rng.standard_normal(shape, "f4") - 2
    check(any_executor, lambda ctx: getattr(tensor(ctx, x), op)(*how), limit=LIMIT)


@pytest.mark.parametrize("channels", [3, 4])
def test_a_mean_may_leave_the_padding_out(executor, check, rng, channels):
    x = rng.standard_normal((2, 5, 6, channels), "f4")
    check(
        executor,
        lambda ctx: tensor(ctx, x).avg_pool(3, 2, 2, count_include_pad=False),
        limit=LIMIT,
    )
    with Context(executor) as ctx:
        ones = ctx.from_numpy(np.ones((1, 5, 6, channels), "f4"))
        got = ones.avg_pool(3, 2, 1, count_include_pad=False).numpy()
    np.testing.assert_array_equal(got, np.ones((1, 3, 3, channels), "f4"))


def test_nan_and_infinity_come_through(executor):
    x = np.array([1, np.nan, -np.inf, np.inf, -5, -6, -7], "f4").reshape(1, 7, 1)
    with Context(executor) as ctx:
        got = tensor(ctx, x).max_pool(2, 1, 1).numpy().ravel()
    np.testing.assert_array_equal(got, [1, np.nan, np.nan, np.inf, np.inf, -5, -6, -7])


PADS = {
    "vector": ((5,), [(3, 9)]),
    "image": ((2, 3, 4, 5), [(0, 0), (2, 1), (1, 2), (0, 0)]),
    "far": ((3, 1), [(7, 8), (2, 5)]),
    "deep": ((2, 1, 3, 2, 2, 3), [(1, 0), (0, 0), (2, 2), (0, 1), (1, 1), (3, 2)]),
}


@pytest.mark.parametrize("name", PADS)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
def test_padding_is_numpys(any_executor, rng, mode, name):
    shape, pairs = PADS[name]
    x = rng.standard_normal(shape, "f4")
    with Context(any_executor) as ctx:
        got = tensor(ctx, x).pad_mode(pairs, mode, *([1.5] if mode == "constant" else [])).numpy()
    filled: dict[str, Any] = {"constant_values": 1.5} if mode == "constant" else {}
    np.testing.assert_array_equal(got, np.pad(x, pairs, mode=mode, **filled))


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_every_type_is_padded_bit_for_bit(executor, rng, dtype):
    x = anything(rng, dtype, (3, 5))
    with Context(executor) as ctx:
        got = bits(plain(ctx, x, dtype).pad_mode([(1, 2), (3, 4)], "reflect"))
        ones = plain(ctx, x, dtype).pad_mode([(1, 0), (0, 1)], "constant", 1)
        one = bits(ones)[0, 0]
    np.testing.assert_array_equal(got, np.pad(x, [(1, 2), (3, 4)], "reflect"))
    assert one == bits_of_one(dtype)


def bits_of_one(dtype):
    if dtype.name == "bf16":
        return np.uint16(0x3F80)
    return np.ones((), dtype.numpy).reshape(1).view(f"u{dtype.block_nbytes}")[0]


FOLDS = [
    ((9, 11), (3, 2)),
    ((9, 11), (3, 2), (2, 1), (1, 2), (1, 2)),
    ((5, 6), (2, 3), (3, 1), ((1, 0), (2, 1))),
]


@pytest.mark.parametrize("how", FOLDS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_columns_go_back_where_they_came_from(executor, check, rng, how, dtype):
    x = rng.standard_normal((2, *how[0], 3), "f4")

    def folded(ctx):
        columns = tensor(ctx, x).im2col(*how[1:])
        values = np.random.default_rng(5).standard_normal(columns.shape, "f4")
        return LAYOUTS["sliced"](ctx, values, dtype).col2im(*how)

    check(executor, folded, limit=LIMIT)


@pytest.mark.parametrize("how", FOLDS, ids=str)
def test_col2im_is_the_transpose_of_im2col(executor, rng, how):
    # <im2col(a), b> = <a, col2im(b)> for all a and b.
    a = rng.standard_normal((1, *how[0], 2), "f4")
    with Context(executor) as ctx:
        columns = tensor(ctx, a).im2col(*how[1:]).numpy()
        b = rng.standard_normal(columns.shape, "f4")
        image = tensor(ctx, b).col2im(*how).numpy()
    np.testing.assert_allclose(np.sum(columns * b), np.sum(a * image), rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        x = ctx.zeros(2, 5, 6, 3)
        for call, message in [
            (lambda: x.max_pool(7, 1), "kernel reaches over 7 values, padded height has 5"),
            (lambda: x.max_pool((2, 2, 2)), r"max_pool: kernel is \(2, 2, 2\), x has 2 axes"),
            (lambda: x.avg_pool(2, 0), "along the height kernel 2, stride 0"),
            (lambda: x.avg_pool(2, 1, -1), "along the height padding -1"),
            (lambda: x.avg_pool(2, 1, (1,)), "avg_pool: 1 paddings, x has 2 axes"),
            (lambda: ctx.zeros(2, 3).max_pool(2), "max_pool: x .* needs 3 to 5"),
            (lambda: x.pad_mode([(0, 1)], "edge"), "pad_mode: 1 pairs, .* needs 4 of two"),
            (lambda: ctx.zeros(2).pad_mode([(0, -1)]), r"pad_mode: \(0, -1\) along axis 0"),
            (lambda: ctx.zeros(0, 2).pad_mode([(1, 0), (0, 0)], "wrap"), "axis 0 has 0 values"),
            (lambda: x.col2im((5, 6), (2, 2)), "needs .4, 5. pixels of a multiple of 4 values"),
        ]:
            with pytest.raises(ShapeError, match=message):
                call()
        with pytest.raises(BackendError, match="mode is 'mirror', needs one of constant, edge"):
            x.pad_mode([(0, 0)] * 4, "mirror")  # pyright: ignore[reportArgumentType]
        with pytest.raises(DTypeError, match="max_pool: x is i32"):
            ctx.zeros(1, 4, 2, dtype=I32).max_pool(2)
        for dtype, value in [(U8, 256), (I8, -129), (I32, 0.5)]:
            with pytest.raises(DTypeError, match=f"pad_mode: value {value} around a tensor"):
                ctx.zeros(3, dtype=dtype).pad_mode([(1, 1)], "constant", value)
