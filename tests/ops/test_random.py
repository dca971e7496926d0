import math
from typing import Any

import numpy as np
import pytest

from tests.ops.operands import FLOATS, ROUNDED
from wgpu_backend.dtypes import BF16, F16, F32, I8, I16, I32, I64, U8, U16, U32
from wgpu_backend.errors import DTypeError, OptionError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.random.bits import key_words, random_bits, random_split
from wgpu_backend.ops.random.choices import (
    random_bernoulli,
    random_categorical,
    random_permutation,
)
from wgpu_backend.ops.random.draws import (
    random_gumbel,
    random_laplace,
    random_normal_key,
    random_randint,
    random_truncated_normal,
    random_uniform,
)

SEED = 0x123456789ABCD
SHAPES = [(), (1,), (2,), (3,), (33,), (3, 257), (2, 3, 2, 3, 5), (0, 3)]
DRAWS = {
    "uniform": (lambda key, *how, **more: random_uniform(key, *how, **more, low=-3, high=7)),
    "normal": (lambda key, *how, **more: random_normal_key(key, *how, **more, loc=1, scale=2)),
    "truncated": lambda key, *how, **more: random_truncated_normal(key, -1.5, 0.5, *how, **more),
    "gumbel": random_gumbel,
    "laplace": (lambda key, *how, **more: random_laplace(key, *how, **more, loc=1, scale=2)),
}


def key_in(ctx, seed=SEED):
    return ctx.from_numpy(np.array(key_words(seed), "u4"), U32)


def drawn(executor, build) -> Any:
    with Context(executor) as ctx:
        return build(ctx).numpy()


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_every_width(gpu, check, shape, width):
    check(gpu, lambda ctx: random_bits(key_in(ctx), shape, width), limit=0)


def test_bits_are_those_of_mlx(executor):
    # mlx 0.32.4: mx.random.split(mx.random.key(42), 3), and mx.random.uniform(shape=(5,), key=…).
    split = [[3134548294, 3733159049], [3746501087, 894150801], [801545058, 2363201431]]
    got = drawn(executor, lambda ctx: random_split(key_in(ctx, 42), 3))
    np.testing.assert_array_equal(got, split)
    uniform = [0.729819, 0.869194, 0.196438, 0.208186, 0.186624]
    got = drawn(executor, lambda ctx: random_uniform(key_in(ctx, 42), (5,)))
    np.testing.assert_allclose(got, uniform, atol=5e-7)
    normal = [0.612265, 1.12259, -0.854413, -0.812732, -0.890405]
    got = drawn(executor, lambda ctx: random_normal_key(key_in(ctx, 42), (5,)))
    np.testing.assert_allclose(got, normal, atol=5e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_of_every_shape_and_type(gpu, check, name, shape, dtype):
    limit = max(ROUNDED[dtype], 1e-12)
    check(gpu, lambda ctx: DRAWS[name](key_in(ctx), shape, dtype=dtype), limit=limit)


def test_uniform_numbers_are_equal_on_every_device(gpu, check):
    check(gpu, lambda ctx: random_uniform(key_in(ctx), (9001,)), limit=0)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_one_is_never_drawn(executor, dtype):
    got = drawn(executor, lambda ctx: random_uniform(key_in(ctx), (60001,), dtype=dtype))
    assert got.min() >= 0
    assert got.max() < 1
    assert abs(got.astype("f8").mean() - 0.5) < 0.01


# From 60,001 numbers a mean is known to four standard deviations of 1/245.
MOMENTS = {
    "uniform": (2, 100 / 12),
    "normal": (1, 4),
    "gumbel": (0.5772156649, math.pi**2 / 6),
    "laplace": (1, 8),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments_are_those_of_the_distribution(executor, name):
    mean, variance = MOMENTS[name]
    got = drawn(executor, lambda ctx: DRAWS[name](key_in(ctx), (60001,))).astype("f8")
    assert abs(got.mean() - mean) < 4 * math.sqrt(variance / got.size)
    assert abs(got.var() / variance - 1) < 0.05


def test_truncated_numbers_stay_between_their_ends(executor):
    got = drawn(executor, lambda ctx: DRAWS["truncated"](key_in(ctx), (9001,)))
    assert -1.5 <= got.min() < -1.49
    assert 0.49 < got.max() <= 0.5
    # The density falls from the middle to an end as exp(-x² / 2) does.
    near, far = (np.count_nonzero(abs(got - x) < 0.1) for x in (0, -1.3))
    assert abs(far / near / math.exp(-(1.3**2) / 2) - 1) < 0.2


@pytest.mark.parametrize("dtype", [I32, U32, I16, U16, I8, U8, I64], ids=str)
@pytest.mark.parametrize("shape", [(1,), (33,), (3, 257)], ids=str)
def test_integers_of_every_type(gpu, check, shape, dtype):
    ends = np.iinfo("i4" if dtype == I64 else dtype.numpy)
    for low, high in ((0, 7), (ends.min, ends.max + 1), (ends.max - 1, ends.max)):
        check(
            gpu,
            lambda ctx, low=low, high=high: random_randint(key_in(ctx), low, high, shape, dtype),
            limit=0,
        )


def test_integers_are_drawn_alike(executor):
    got = drawn(executor, lambda ctx: random_randint(key_in(ctx), -5, 5, (20000,)))
    counts = np.bincount(got + 5)
    assert len(counts) == 10
    assert abs(counts - 2000).max() < 5 * math.sqrt(2000)


def test_truth_of_a_probability(executor, rng):
    got = drawn(executor, lambda ctx: random_bernoulli(key_in(ctx), 0.3, (9001,)))
    assert got.dtype == bool
    assert abs(got.mean() - 0.3) < 0.02
    p = np.array([[0], [0.25], [1]], "f4")

    def build(ctx):
        return random_bernoulli(key_in(ctx), ctx.from_numpy(p), (3, 5001))

    got = drawn(executor, build).mean(-1)
    np.testing.assert_allclose(got, p[:, 0], atol=0.03)
    assert drawn(executor, lambda ctx: random_bernoulli(key_in(ctx), ctx.from_numpy(p))).shape == (
        3,
        1,
    )


@pytest.mark.parametrize("samples", [None, 1, 4])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_categories_along_every_axis(gpu, check, rng, dtype, axis, samples):
    x = rng.standard_normal((5, 7, 9), "f4")

    def build(ctx):
        logits = ctx.from_numpy(x).cast(dtype=dtype).permute(2, 0, 1)
        return random_categorical(key_in(ctx), logits, axis, samples)

    check(gpu, build, limit=0)


def test_categories_are_drawn_with_their_probabilities(executor):
    p = np.array([0.5, 0.2, 0, 0.3], "f4")
    with np.errstate(divide="ignore"):
        logits = np.log(p) + 7
    got = drawn(
        executor,
        lambda ctx: random_categorical(key_in(ctx), ctx.from_numpy(logits), num_samples=9001),
    )
    np.testing.assert_allclose(np.bincount(got, minlength=4) / got.size, p, atol=0.02)


@pytest.mark.parametrize("n", [0, 1, 33, 1500])
def test_permutations_hold_every_number_once(gpu, check, n):
    check(gpu, lambda ctx: random_permutation(key_in(ctx), n), limit=0)
    got = drawn(gpu, lambda ctx: random_permutation(key_in(ctx), n))
    np.testing.assert_array_equal(np.sort(got), np.arange(n))


def test_keys_of_a_split_are_views_that_work(executor):
    with Context(executor) as ctx:
        keys: Any = random_split(key_in(ctx), 3)
        both: list[Any] = [random_uniform(keys[i], (65,)) for i in (1, 2)]
        a, b = (found.numpy() for found in both)
        own = ctx.from_numpy(np.asarray(keys[1].numpy()), U32)
        made: Any = random_uniform(own, (65,))
        again = made.numpy()
    np.testing.assert_array_equal(a, again)
    assert np.count_nonzero(a == b) == 0


def test_refusals(full):
    with Context(full) as ctx:
        key = key_in(ctx)
        with pytest.raises(ShapeError, match=r"random_uniform: key is \(3, 2\), needs \(2,\)"):
            random_uniform(random_split(key, 3), (3,))
        with pytest.raises(DTypeError, match="random_gumbel: i32, needs f32, f16 or bf16"):
            random_gumbel(key, (3,), dtype=I32)
        with pytest.raises(DTypeError, match="random_bits: key is f32, needs u32"):
            random_bits(ctx.zeros(2), (3,))
        with pytest.raises(OptionError, match=r"random_bits: width is 8, needs one of \[1, 2, 4\]"):
            random_bits(key, (3,), 8)
        with pytest.raises(OptionError, match=r"random_randint: from 0 to 300, .* 0 to 256"):
            random_randint(key, 0, 300, (3,), U8)
        with pytest.raises(OptionError, match="random_truncated_normal: from 2 to 1, needs"):
            random_truncated_normal(key, 2, 1)
        with pytest.raises(ShapeError, match=r"\(3,\) does not broadcast to \(4,\)"):
            random_bernoulli(key, ctx.zeros(3), (4,))
