import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor
from wgpu_backend.dtypes import F16, F32, I32, Q8_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

TYPES = [*FLOATS, I32]


def integers(rng, shape):
    """Values that every type holds."""
    return rng.integers(-200, 200, shape).astype("f4")


@pytest.mark.parametrize("amounts", [(0, 1, 2), (3, 0, 0), (-1, 2, -3), (-3, 0, 0), (0, 0, -9)])
def test_pad_adds_zeros_and_crops(executor, rng, amounts):
    x = integers(rng, (3, 5, 9))
    with Context(executor) as ctx:
        got = LAYOUTS["permuted"](ctx, x, F32).pad(*amounts).numpy()
    cropped = x[tuple(slice(0, n + min(a, 0)) for n, a in zip(x.shape, amounts, strict=True))]
    want = np.pad(cropped, [(0, max(a, 0)) for a in amounts])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_pad_ext_works_at_both_ends(executor, check, rng, dtype):
    x = integers(rng, (5, 9))
    check(executor, lambda ctx: tensor(ctx, x, dtype).pad_ext((2, 1), (0, 3)), limit=0)
    with Context(executor) as ctx:
        got = tensor(ctx, x, dtype).pad_ext((-1, -2), (3, -4)).numpy()
    np.testing.assert_array_equal(got, np.pad(x[1:3, :5], [(0, 0), (3, 0)]))


def test_padding_moves_bits_as_they_are(executor):
    bits = np.arange(1 << 16, dtype="u2")
    with Context(executor) as ctx:
        got = ctx.from_bytes(F16, bits.tobytes(), len(bits)).pad(3).numpy()
    np.testing.assert_array_equal(got.view("u2"), np.pad(bits, (0, 3)))


def test_padding_refuses(full):
    with Context(full) as ctx:
        x = ctx.zeros(2, 3)
        with pytest.raises(ShapeError, match=r"pad: 1 amounts, \(2, 3\) needs 2, one for each"):
            x.pad(1)
        with pytest.raises(ShapeError, match="pad: 4 values cut off axis 1, which has 3"):
            x.pad(0, -4)
        with pytest.raises(ShapeError, match="pad_ext: 3 values cut off axis 0, which has 2"):
            x.pad_ext((-3, 5), (0, 0))
        with pytest.raises(ShapeError, match=r"pad_ext: 1 amounts, .* needs 2 pairs"):
            x.pad_ext((1, 1))
        with pytest.raises(DTypeError, match="window: x is q8_0, needs"):
            ctx.state((32,), Q8_0).pad(1)


@pytest.mark.parametrize(("axis", "n"), [(0, 2), (1, 3), (-1, 1), (2, 5), (1, 0)])
def test_repeat_tiles_an_axis(executor, rng, axis, n):
    x = integers(rng, (3, 5, 9))
    with Context(executor) as ctx:
        got = LAYOUTS["permuted"](ctx, x, F32).repeat(axis, n).numpy()
    np.testing.assert_array_equal(got, np.concatenate([x] * n or [x[:, :0]], axis))


@pytest.mark.parametrize(
    ("shape", "wanted"), [((3,), (2, 6)), ((1, 5), (4, 1, 3, 5)), ((), (2, 3))]
)
def test_repeat_4d_fills_a_shape(any_executor, check, rng, shape, wanted):
    x = integers(rng, shape)
    check(any_executor, lambda ctx: tensor(ctx, x).repeat_4d(*wanted), limit=0)
    times = [n // m for n, m in zip(wanted, (1,) * (len(wanted) - x.ndim) + shape, strict=True)]
    with Context(any_executor) as ctx:
        np.testing.assert_array_equal(tensor(ctx, x).repeat_4d(*wanted).numpy(), np.tile(x, times))


def test_repeating_refuses(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"repeat: \(2, 3\) to \(4, 4\), needs a multiple"):
            ctx.zeros(2, 3).repeat_4d(4, 4)
        with pytest.raises(ShapeError, match=r"repeat: \(2, 3\) to \(6,\)"):
            ctx.zeros(2, 3).repeat_4d(6)
        with pytest.raises(ShapeError, match="repeat: -1 times, needs 0 or more"):
            ctx.zeros(2, 3).repeat(0, -1)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("axis", [0, -1])
def test_stack_joins_along_an_axis(executor, rng, axis, count):
    parts = [rng.standard_normal((3, 5), "f4") for _ in range(count)]
    with Context(executor) as ctx:
        first, *others = [tensor(ctx, p) for p in parts]
        got = first.stack(axis, *others).numpy()
    np.testing.assert_array_equal(got, np.concatenate(parts, axis))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_as_strided_sees_the_storage_otherwise(executor, rng, dtype):
    x = integers(rng, 40)
    with Context(executor) as ctx:
        base = tensor(ctx, x, dtype)
        got = base.slice(0, 3, 40).as_strided((4, 5), (7, 2), 1).contiguous().numpy()
        overlapping = base.as_strided((5, 3), (1, 1)).contiguous().numpy()
        plain = base.view((5, 4), offset=20).contiguous().numpy()
    places = 4 + 7 * np.arange(4)[:, None] + 2 * np.arange(5)
    np.testing.assert_array_equal(got, x[places])
    np.testing.assert_array_equal(overlapping, x[np.arange(5)[:, None] + np.arange(3)])
    np.testing.assert_array_equal(plain, x[20:].reshape(5, 4))


def test_a_view_may_reach_in_front_of_its_tensor(executor, rng):
    x = integers(rng, 40)
    with Context(executor) as ctx:
        got = tensor(ctx, x).slice(0, 10, 20).view((40,), offset=-10).contiguous().numpy()
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda x: x.as_strided((4, 5), (9, 1)), "elements 0 to 32, the storage has 30"),
        (lambda x: x.view((31,)), "view: elements 0 to 31, the storage has 30"),
        (lambda x: x.view((3,), offset=-1), "view: elements -1 to 2, the storage has 30"),
        (lambda x: x.as_strided((3,), (-1,), 5), r"strides \(-1,\), needs as many, none negative"),
        (lambda x: x.as_strided((3,), (1, 1)), r"shape \(3,\), strides \(1, 1\)"),
    ],
)
def test_views_that_leave_the_storage_are_refused(full, act, message):
    with Context(full) as ctx, pytest.raises(ShapeError, match=message):
        act(ctx.zeros(30))


def test_slices_with_a_step_have_the_length_of_numpy(executor, rng):
    x = rng.standard_normal(11).astype("f4")
    with Context(executor) as ctx:
        for step in range(1, 13):
            got = tensor(ctx, x).slice(0, 1, 11, step).contiguous().numpy()
            np.testing.assert_array_equal(got, x[1:11:step])


def test_duplicate_is_a_copy(executor, check, rng):
    x = rng.standard_normal((3, 5), "f4")
    check(executor, lambda ctx: LAYOUTS["permuted"](ctx, x, F32).duplicate(), limit=0)
