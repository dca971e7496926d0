import math

import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import F16, I32, Q8_0
from wgpu_backend.errors import ModelError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.nn import RopeOptions, Rotary

# Angles of up to some hundred turns: a last bit of them is 1e-5 of a turn.
LIMIT = 1e-9


def turned(x, angles, interleaved=False, magnitude=1.0):
    """Rotation in f64: angles (tokens, pairs)."""
    pairs, y = angles.shape[1], x.astype("f8").copy()
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    c, s = magnitude * np.cos(angles)[:, None], magnitude * np.sin(angles)[:, None]
    a, b = x[..., first].astype("f8"), x[..., second].astype("f8")
    y[..., first], y[..., second] = a * c - b * s, a * s + b * c
    return y


def near(got, want):
    assert got.shape == want.shape
    assert ((got - want) ** 2).sum() <= LIMIT * (want**2).sum()


def powers(pairs, base=10_000.0):
    return base ** -(np.arange(pairs) / pairs)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [8, 32, 40])
def test_both_types_of_pairs(executor, rng, dims, interleaved):
    x, at = rng.standard_normal((5, 3, 40), "f4"), rng.integers(0, 99, 5)
    options = RopeOptions(dims, 10_000.0, 0.5, interleaved=interleaved)
    with Context(executor) as ctx:
        got = tensor(ctx, x).rope_with(ctx.from_numpy(at), options).numpy()
    near(got, turned(x, 0.5 * at[:, None] * powers(dims // 2), interleaved))


def test_factors_divide_frequencies(executor, rng):
    x, at = rng.standard_normal((5, 3, 32), "f4"), rng.integers(0, 99, 5)
    factors = rng.uniform(1, 8, 16).astype("f4")
    with Context(executor) as ctx:
        positions = ctx.from_numpy(at)
        got = tensor(ctx, x).rope_with(positions, RopeOptions(32), tensor(ctx, factors)).numpy()
        other = Rotary(RopeOptions(32), factors)(tensor(ctx, x), positions).numpy()
    near(got, turned(x, at[:, None] * powers(16) / factors))
    near(got, other.astype("f8"))


def test_yarn_scales_the_magnitude(executor, rng):
    x, at = rng.standard_normal((5, 3, 32), "f4"), rng.integers(0, 99, 5)
    options = RopeOptions(32, scale=0.25, original_context=64, extrapolation=1.0)
    with Context(executor) as ctx:
        got = tensor(ctx, x).rope_with(ctx.from_numpy(at), options).numpy()
    angles = at[:, None] * options.frequencies().astype("f8")
    near(got, turned(x, angles, magnitude=1 + 0.1 * math.log(4)))


def of_four(rng, tokens):
    return rng.integers(0, 99, (4, tokens)).astype("i4")


@pytest.mark.parametrize("flat", [False, True])
def test_sections_turn_by_their_own_positions(any_executor, rng, flat):
    x, at = rng.standard_normal((5, 3, 32), "f4"), of_four(rng, 5)
    options = RopeOptions(32, sections=(4, 6, 5, 1))
    axis = np.repeat([0, 1, 2, 3], (4, 6, 5, 1))
    with Context(any_executor) as ctx:
        positions = ctx.from_numpy(at.reshape(-1) if flat else at)
        got = tensor(ctx, x).rope_with(positions, options).numpy()
        other = Rotary(options)(tensor(ctx, x), positions).numpy()
    near(got, turned(x, at[axis].T * powers(16)))
    np.testing.assert_array_equal(got, other)


def test_sections_begin_anew_where_pairs_are_left(executor, rng):
    x, at = rng.standard_normal((5, 3, 32), "f4"), of_four(rng, 5)
    axis = np.tile(np.repeat([0, 1, 2], (2, 3, 3)), 2)
    with Context(executor) as ctx:
        options = RopeOptions(32, sections=(2, 3, 3, 0))
        got = tensor(ctx, x).rope_with(ctx.from_numpy(at), options).numpy()
    near(got, turned(x, at[axis].T * powers(16)))


def test_interleaved_sections_alternate_while_they_last(executor, rng):
    x, at = rng.standard_normal((5, 3, 32), "f4"), of_four(rng, 5)
    # Of 16 pairs: time 6, height 5, width 4; the last of each third of a turn falls to the fourth.
    axis = np.array([0, 1, 2] * 4 + [0, 1, 3] + [0])
    with Context(executor) as ctx:
        options = RopeOptions(32, sections=(6, 5, 4, 1), sectioning="interleaved")
        got = tensor(ctx, x).rope_with(ctx.from_numpy(at), options).numpy()
    near(got, turned(x, at[axis].T * powers(16)))


def test_vision_sections_begin_at_the_first_frequency(executor, rng):
    x, at = rng.standard_normal((5, 3, 32), "f4"), of_four(rng, 5)
    axis = np.repeat([0, 1], 8)
    with Context(executor) as ctx:
        options = RopeOptions(32, sections=(8, 8, 8, 8), sectioning="vision")
        got = tensor(ctx, x).rope_with(ctx.from_numpy(at), options).numpy()
    near(got, turned(x, at[axis].T * np.tile(powers(8), 2)))


def test_layers_share_a_table(full, rng):
    options = RopeOptions(32)
    with Context(full) as ctx:
        positions, x = ctx.from_ints([1, 2, 3]), ctx.zeros(3, 2, 32)
        recorded = ctx.record(
            x.rope_with(positions, options), x.scale(factor=2).rope_with(positions, RopeOptions(32))
        )
        assert recorded.dispatches == 4
        recorded.close()


def test_heads_may_be_f16_or_blocks(executor, check, rng):
    x, at = rng.standard_normal((5, 3, 32), "f4"), rng.integers(0, 99, 5)
    from tests.ops.operands import weight_bytes

    data = weight_bytes(rng, 15, 32, Q8_0)
    for made in (
        lambda ctx: tensor(ctx, x, F16),
        lambda ctx: ctx.from_bytes(Q8_0, data, 5, 3, 32),
    ):
        check(
            executor,
            lambda ctx, made=made: made(ctx).rope_with(ctx.from_numpy(at), RopeOptions(32)),
            limit=LIMIT,
        )


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("dims", [16, 32])
def test_positions_from_an_offset_on(executor, rng, dims, traditional):
    x = rng.standard_normal((2, 3, 5, 32), "f4")
    how = {"dims": dims, "traditional": traditional, "scale": 0.5, "base": 1000.0}
    with Context(executor) as ctx:
        got = tensor(ctx, x).rope_from(7, **how).numpy()
    angles = 0.5 * np.arange(7, 12)[:, None] * powers(dims // 2, 1000.0)
    want = [turned(b.swapaxes(0, 1), angles, traditional).swapaxes(0, 1) for b in x]
    near(got, np.stack(want))


def test_freqs_are_positions_a_radian(executor, rng):
    x, freqs = rng.standard_normal((1, 2, 4, 16), "f4"), rng.uniform(1, 99, 8).astype("f4")
    with Context(executor) as ctx:
        got = tensor(ctx, x).rope_from(3, dims=16, scale=2.0, freqs=tensor(ctx, freqs)).numpy()
    angles = 2 * np.arange(3, 7)[:, None] / freqs
    near(got, turned(x[0].swapaxes(0, 1), angles).swapaxes(0, 1)[None])


@pytest.mark.parametrize("tokens", [1, 33])
def test_tables_of_streams_agree_with_numpy(any_executor, check, rng, tokens):
    at, axes = of_four(rng, tokens), rng.integers(0, 4, 9)
    frequencies = powers(9).astype("f4")

    def build(ctx):
        how = (ctx.from_numpy(frequencies), ctx.from_numpy(axes))
        return ctx.from_numpy(at).rope_table_axes(*how, magnitude=1.5)

    check(any_executor, build, limit=1e-12)


def test_what_does_not_fit_is_refused(full):
    with pytest.raises(ModelError, match=r"sections are \(1, 2\), needs 4"):
        RopeOptions(32, sections=(1, 2))
    with Context(full) as ctx:
        x, four = ctx.zeros(3, 2, 32), RopeOptions(32, sections=(8, 4, 4, 0))
        with pytest.raises(ShapeError, match=r"positions is \(3,\), needs 4 for each token"):
            x.rope_with(ctx.zeros(3, dtype=I32), four)
        with pytest.raises(ShapeError, match=r"x is \(3, 2, 32\), needs \(batch, heads,"):
            x.rope_from(0, dims=32)
        with pytest.raises(ShapeError, match=r"axes is \(3,\), frequencies has 4 pairs"):
            ctx.zeros(8, dtype=I32).rope_table_axes(ctx.zeros(4), ctx.zeros(3, dtype=I32))
