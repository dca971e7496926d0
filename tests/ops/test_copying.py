import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, ROUNDED, tensor
from wgpu_backend.dtypes import BF16, F16, F32, I64, U8, bf16_to_f32, f32_to_bf16
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context


@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts_round_to_nearest_even(executor, check, rng, source, target):
    x = rng.standard_normal((3, 5, 9), "f4")
    check(executor, lambda ctx: LAYOUTS["permuted"](ctx, x, source).cast(dtype=target), limit=0)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_ties_go_to_the_even_neighbour(executor, check, dtype):
    step = 2.0**-10 if dtype == F16 else 2.0**-7
    x = (1 + step * (np.arange(64) / 2)).astype("f4")
    check(executor, lambda ctx: tensor(ctx, np.concatenate([x, -x])).cast(dtype=dtype), limit=0)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_casts_keep_nan_and_infinity(executor, check, dtype):
    x = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, 65519.9, -65520, 3.4e38], "f4")
    check(executor, lambda ctx: tensor(ctx, x).cast(dtype=dtype).cast(dtype=F32), limit=0)


def test_every_bf16_pattern_comes_through(executor):
    bits = np.arange(1 << 16, dtype="u2")
    with Context(executor) as ctx:
        got = ctx.from_bytes(BF16, bits.tobytes(), len(bits)).contiguous().numpy()
    want = bf16_to_f32(bits)
    normal = np.isfinite(want) & ((bits & 0x7F80) != 0)  # devices may flush subnormals
    np.testing.assert_array_equal(got[normal], want[normal])


def test_every_f16_value_comes_through(executor):
    bits = np.arange(1 << 16, dtype="u2")
    want = bits.view("f2")
    with Context(executor) as ctx:
        got = ctx.from_bytes(F16, bits.tobytes(), len(bits)).cast(dtype=F32).numpy()
    normal = np.isfinite(want) & ((bits & 0x7C00) != 0)
    np.testing.assert_array_equal(got[normal], want[normal].astype("f4"))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concat_joins_along_every_axis(executor, check, rng, axis):
    shapes = [[2, 3, 5], [2, 3, 5]]
    shapes[1][axis] = 4
    a, b = (rng.standard_normal(shape, "f4") for shape in shapes)
    check(
        executor,
        lambda ctx: tensor(ctx, a, F16).concat(LAYOUTS["sliced"](ctx, b, F16), axis=axis),
        limit=0,
    )


@pytest.mark.parametrize(("left", "right"), [(1, 1), (1, 33), (257, 3), (0, 3), (3, 0)])
def test_concat_of_odd_lengths(executor, check, rng, left, right):
    a, b = rng.standard_normal(left, "f4"), rng.standard_normal(right, "f4")
    check(executor, lambda ctx: tensor(ctx, a).concat(tensor(ctx, b), axis=0), limit=0)


def test_reshape_of_a_strided_tensor_copies(executor, check, rng):
    x = rng.standard_normal((3, 5, 9), "f4")
    check(executor, lambda ctx: LAYOUTS["permuted"](ctx, x).reshape(5, -1) + 0, limit=0)


def test_slices_of_slices_read_the_right_values(executor, check, rng):
    x = rng.standard_normal((7, 33), "f4")
    check(
        executor,
        lambda ctx: LAYOUTS["sliced"](ctx, x)[1:6:2, 30:].permute(1, 0).contiguous(),
        limit=0,
    )


def test_narrowing_matches_the_shader_on_the_host():
    assert f32_to_bf16(np.float32(1 + 2**-8)) == 0x3F80
    assert f32_to_bf16(np.float32(1 + 3 * 2**-8)) == 0x3F82


def test_concat_refuses_an_axis_that_is_not_there(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match=r"concat: axis 2, .* axes -2 to 1"):
        ctx.zeros(2, 3).concat(ctx.zeros(2, 3), axis=2)


@pytest.mark.parametrize("dtype", [F32, F16, U8, I64], ids=str)
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((2, 3, 1, 5, 3), (4, 2, 1, 3, 0)),
        ((2, 3, 2, 3, 2, 3), (5, 4, 3, 2, 1, 0)),
        ((2, 1, 3, 2, 2, 3, 1, 3), (7, 3, 2, 6, 0, 5, 1, 4)),
        ((3, 2, 2, 2, 2, 2, 2, 3), (7, 6, 5, 4, 3, 2, 1, 0)),
        ((2, 3, 0, 5, 3), (4, 2, 1, 3, 0)),
    ],
    ids=str,
)
def test_copies_and_flips_of_up_to_eight_axes(gpu, check, rng, shape, order, dtype):
    x = rng.integers(0, 127, shape)

    def strided(ctx):
        return tensor(ctx, x.astype("f4"), dtype).permute(*order)

    check(gpu, lambda ctx: strided(ctx).contiguous(), limit=0)
    check(gpu, lambda ctx: strided(ctx).flip(axes=(0, 3, -1)), limit=0)
    with Context(gpu) as ctx:
        got = strided(ctx).flip(axes=(0, 3, -1)).numpy()
    np.testing.assert_array_equal(got, np.flip(x.transpose(order), (0, 3, -1)))


def test_casts_join_axes(gpu, check, rng):
    x = rng.standard_normal((2, 3, 2, 3, 5), "f4")
    check(gpu, lambda ctx: tensor(ctx, x)[:, :, :, :, ::2].cast(dtype=F16), limit=ROUNDED[F16])


def test_more_axes_are_refused(full):
    with Context(full) as ctx:
        nine = ctx.zeros(*[2] * 9).permute(*range(8, -1, -1))
        with pytest.raises(ShapeError, match=r"contiguous: .* 9 axes after joining .* at most 8"):
            nine.contiguous()
        with pytest.raises(ShapeError, match=r"flip: axis 3, .* axes -2 to 1"):
            ctx.zeros(2, 2).flip(axes=3)
        with pytest.raises(ShapeError, match=r"cast: .* 9 axes after joining .* at most 4"):
            nine.cast(dtype=F16)
