import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import F16, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context


def frequencies(pairs, base=10_000.0):
    return (base ** -(np.arange(pairs) / pairs)).astype("f4")


def table(ctx, positions, pairs, **options):
    return ctx.from_numpy(positions).rope_table(ctx.from_numpy(frequencies(pairs)), **options)


@pytest.mark.parametrize("pairs", [1, 3, 33, 64])
@pytest.mark.parametrize("tokens", [1, 3, 257])
def test_angles_agree_with_numpy(executor, check, rng, tokens, pairs):
    positions = rng.integers(0, 4096, tokens)
    check(executor, lambda ctx: table(ctx, positions, pairs), limit=1e-12)


@pytest.mark.parametrize("first", [0, 65_500, 100_000, 131_000, 1_000_000])
def test_angles_of_far_positions_are_close_value_by_value(executor, first):
    positions, pairs = np.arange(first, first + 72, dtype="i4"), 64
    with Context(executor) as ctx:
        got = table(ctx, positions, pairs).numpy()
    angles = (positions[:, None].astype("f4") * frequencies(pairs)).astype("f8")
    want = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    # A step of f32 below 1 is 6e-8; the polynomial and the reduction each cost about one.
    np.testing.assert_allclose(got, want, atol=2e-7, rtol=0)


def test_magnitude_scales_both(executor, check, rng):
    positions = rng.integers(0, 999, 9)
    check(executor, lambda ctx: table(ctx, positions, 16, magnitude=1.3), limit=1e-12)


def test_negative_positions_turn_backwards(executor, check):
    check(executor, lambda ctx: table(ctx, np.arange(-9, 9), 16), limit=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "cols", "pairs"),
    [(1, 2, 1), (3, 64, 32), (4, 64, 16), (2, 80, 20), (1, 128, 64), (3, 9, 4), (2, 9, 1)],
)
@pytest.mark.parametrize("tokens", [1, 5])
def test_rotation_agrees_with_numpy(
    any_executor, check, rng, tokens, heads, cols, pairs, interleaved
):
    x, positions = rng.standard_normal((tokens, heads, cols), "f4"), rng.integers(0, 999, tokens)
    check(
        any_executor,
        lambda ctx: tensor(ctx, x).rope(table(ctx, positions, pairs), interleaved=interleaved),
        limit=1e-12,
    )


def test_heads_and_tokens_may_be_swapped(executor, check, rng):
    x, positions = rng.standard_normal((3, 5, 32), "f4"), rng.integers(0, 999, 5)
    check(
        executor,
        lambda ctx: tensor(ctx, x).permute(1, 0, 2).rope(table(ctx, positions, 16)),
        limit=1e-12,
    )


def test_a_table_of_more_pairs_than_a_head_has_is_refused(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match="rotates 10 values, heads have 8"):
        ctx.zeros(5, 2, 8).rope(ctx.zeros(5, 5, 2))


def test_a_table_without_cosines_and_sines_is_refused(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match=r"table is \(5, 4, 3\)"):
        ctx.zeros(5, 2, 8).rope(ctx.zeros(5, 4, 3))


def test_values_of_a_head_must_be_neighbours(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match="lie 2 apart, need 1"):
        ctx.zeros(5, 8, 2).permute(0, 2, 1).rope(ctx.zeros(5, 4, 2))


def test_ranks_are_checked(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"rope: x .* 2 axes, needs 3 to 3"):
            ctx.zeros(5, 8).rope(ctx.zeros(5, 4, 2))
        with pytest.raises(ShapeError, match=r"rope: table .* 2 axes, needs 3 to 3"):
            ctx.zeros(5, 2, 8).rope(ctx.zeros(5, 4))
        with pytest.raises(ShapeError, match=r"rope_table: positions .* 2 axes, needs 1 to 1"):
            ctx.zeros(5, 1, dtype=I32).rope_table(ctx.zeros(4))


def test_types_are_checked(full):
    with Context(full) as ctx:
        with pytest.raises(DTypeError, match="rope_table: positions is f32, needs i32"):
            ctx.zeros(5).rope_table(ctx.zeros(4))
        with pytest.raises(DTypeError, match="rope_table: frequencies is f16, needs f32"):
            ctx.zeros(5, dtype=I32).rope_table(ctx.zeros(4, dtype=F16))
        with pytest.raises(DTypeError, match="rope: x is i32, needs f32"):
            ctx.zeros(5, 2, 8, dtype=I32).rope(ctx.zeros(5, 4, 2))
