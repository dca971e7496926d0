"""Ops that move values take every plain type, bit for bit."""

import numpy as np
import pytest

from tests.ops.operands import PLAIN, anything, bits, plain
from wgpu_backend.dtypes import BF16, BOOL, COMPLEX64, F16, I32, U8
from wgpu_backend.errors import DTypeError
from wgpu_backend.ml.context import Context

# One of each width; `tests/ops/table.py` has all.
WIDTHS = (BOOL, U8, F16, I32, COMPLEX64)
# Of one tensor `x` (3, 5, 9) as bits: what the op gives, and NumPy.
IDS = np.array([2, 0, -1, 2])
MOVES = {
    "contiguous": (lambda x, ctx: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    "duplicate": (lambda x, ctx: x[::2, 1:4, 3:].duplicate(), lambda x: x[::2, 1:4, 3:]),
    "as_strided": (
        lambda x, ctx: x.as_strided((4, 5), (7, 2), 1),
        lambda x: x.reshape(-1)[1 + 7 * np.arange(4)[:, None] + 2 * np.arange(5)],
    ),
    "pad": (lambda x, ctx: x.pad(1, 0, 2), lambda x: np.pad(x, [(0, 1), (0, 0), (0, 2)])),
    "pad_ext": (
        lambda x, ctx: x.pad_ext((0, 1), (-2, 1), (3, -4)),
        lambda x: np.pad(x[:, 2:, :5], [(0, 1), (0, 1), (3, 0)]),
    ),
    "repeat": (lambda x, ctx: x.repeat(2, 3), lambda x: np.tile(x, (1, 1, 3))),
    "repeat_4d": (lambda x, ctx: x.repeat_4d(2, 3, 5, 18), lambda x: np.tile(x, (2, 1, 1, 2))),
    "concat": (
        lambda x, ctx: x.concat(x[:, :2], axis=1),
        lambda x: np.concatenate([x, x[:, :2]], 1),
    ),
    "stack": (
        lambda x, ctx: x.stack(-1, x[:, :, 4:], x[:, :, :1]),
        lambda x: np.concatenate([x, x[:, :, 4:], x[:, :, :1]], -1),
    ),
    "take_axes": (
        lambda x, ctx: x.take_axes(ctx.from_numpy(IDS), 2),
        lambda x: np.take(x, IDS, 2),
    ),
    "take_along_axis": (
        lambda x, ctx: x.take_along_axis(ctx.from_numpy(np.tile(IDS, (3, 5, 1))), 2),
        lambda x: np.take(x, IDS, 2),
    ),
    "tri": (lambda x, ctx: x.tri(2), np.tril),
    "diag": (lambda x, ctx: x[:, 1].diag(), lambda x: np.eye(9, dtype=x.dtype) * x[:, 1, None]),
}


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_values_are_moved_as_they_are(executor, rng, name, dtype):
    move, wanted = MOVES[name]
    data = anything(rng, dtype, (3, 5, 9))
    with Context(executor) as ctx:
        got = bits(move(plain(ctx, data, dtype), ctx))
    np.testing.assert_array_equal(got, wanted(data))


def slice_update(x, new, ctx):
    return x.slice_update(new, (0, 1, 3), (3, 4, 9), (2, 1, 2))


def set_inplace(x, new, ctx):
    return x.set_inplace(new.reshape(-1), (5,), 7)


def scatter(x, new, ctx):
    ids = ctx.from_numpy(np.array([2, -3]))
    return x.scatter([ids], new.reshape(2, 1, 3, 3), [0])


def slice_update_dynamic(x, new, ctx):
    return x.slice_update_dynamic(new, ctx.from_ints([1, 4]), (1, 2))


def put_along_axis(x, new, ctx):
    ids = ctx.from_numpy(np.full((2, 3, 1), 4))
    return x[:2, :3].put_along_axis(ids, new[:, :, :1], 2)


def copy(x, new, ctx):
    state = ctx.zeros(3, 5, 9, dtype=x.dtype)
    ctx.compute(x.copy(state))
    ctx.compute(new.copy(state[:2, 1:4, 3:9:2]))
    return state


def assigned(name, x, new):
    want = x.copy()
    if name == "slice_update":
        want[0:3:2, 1:4, 3:9:2] = new
    if name == "set_inplace":
        want.reshape(-1)[7 : 7 + 5 * 18 : 5] = new.reshape(-1)
    if name == "scatter":
        want[[2, 0], :3, :3] = new
    if name == "slice_update_dynamic":
        want[:2, 1:4, 4:7] = new
    if name == "put_along_axis":
        want = want[:2, :3].copy()
        want[:, :, 4] = new[:, :, 0]
    if name == "copy":
        want[:2, 1:4, 3:9:2] = new
    return want


WRITES = (slice_update, set_inplace, scatter, slice_update_dynamic, put_along_axis, copy)


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("write", WRITES, ids=lambda w: w.__name__)
def test_values_are_written_as_they_are(executor, rng, write, dtype):
    data, new = anything(rng, dtype, (3, 5, 9)), anything(rng, dtype, (2, 3, 3))
    with Context(executor) as ctx:
        got = bits(write(plain(ctx, data, dtype), plain(ctx, new, dtype), ctx))
    np.testing.assert_array_equal(got, assigned(write.__name__, data, new))


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_threads_write_values_of_one_word(executor, rng, dtype):
    data, new = anything(rng, dtype, (4001,)), anything(rng, dtype, (4001,))
    ids = rng.permutation(4001)
    ids[::3] = 5000  # outside: written nowhere
    with Context(executor) as ctx:
        x = plain(ctx, data, dtype)
        got = bits(x.put_along_axis(ctx.from_numpy(ids), plain(ctx, new, dtype), 0))
    want = data.copy()
    inside = ids < 4001
    want[ids[inside]] = new[inside]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("size", [0, 1, 3, 33, 257])
def test_odd_sizes_of_every_type(executor, rng, dtype, size):
    data = anything(rng, dtype, (size,))
    with Context(executor) as ctx:
        x = plain(ctx, data, dtype)
        np.testing.assert_array_equal(bits(x.pad(1)), np.pad(data, (0, 1)))
        np.testing.assert_array_equal(bits(x.concat(x, axis=0)), np.tile(data, 2))
        np.testing.assert_array_equal(bits(x.pad(2).slice_update(x, [1])[1:-1]), data)


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
@pytest.mark.parametrize("value", [0, 1])
def test_fill_takes_every_type(executor, dtype, value):
    with Context(executor) as ctx:
        got = ctx.zeros(3, 7, dtype=dtype).fill(value).numpy()
    want = np.full((3, 7), value, np.float32 if dtype == BF16 else dtype.numpy)
    np.testing.assert_array_equal(got, want)


def test_not_a_number_keeps_its_bits(gpu):
    for dtype, pattern in (("f2", 0x7C01), ("f4", 0x7F80_0001), ("f8", 0x7FF0_0000_0000_0001)):
        word = dtype.replace("f", "u")
        data = np.array([pattern, pattern + 4, 0, 1], word)
        with Context(gpu) as ctx:
            of = next(d for d in PLAIN if d.numpy == np.dtype(dtype))
            x = plain(ctx, data, of)
            got = x.slice_update(x[:1], [2]).concat(x.pad(1), axis=0).numpy()
        want = [*data[:2], pattern, 1, *data, 0]
        np.testing.assert_array_equal(got.view(word), np.array(want, word))


def test_fill_refuses_what_a_type_cannot_hold(full):
    with Context(full) as ctx, pytest.raises(DTypeError, match=r"fill: 2 in .* bool, needs .* 1"):
        ctx.zeros(3, dtype=BOOL).fill(2)
