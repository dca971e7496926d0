import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import F16, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

# Sums of a few thousand f32 in another order, and a square root: 1e-6 of a value, squared.
LIMIT = 1e-12
SHAPES = [(1,), (3,), (33,), (257,), (3, 64), (2, 3, 65), (2, 1, 3, 1025), (5, 4096)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm_agrees_with_numpy(any_executor, check, rng, shape, weighted):
    x, w = 5 * rng.standard_normal(shape, "f4"), rng.standard_normal(shape[-1], "f4")

    def normed(ctx):
        return tensor(ctx, x).rms_norm(tensor(ctx, w) if weighted else None, eps=1e-5)

    check(any_executor, normed, limit=LIMIT)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_layer_norm_agrees_with_numpy(any_executor, check, rng, shape, weighted, biased):
    x, w, b = (rng.standard_normal(s, "f4") for s in (shape, shape[-1], shape[-1]))

    def normed(ctx):
        weight, bias = tensor(ctx, w), tensor(ctx, b)
        return tensor(ctx, x).layer_norm(
            weight if weighted else None, bias if biased else None, eps=1e-5
        )

    check(any_executor, normed, limit=LIMIT)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_agrees_with_numpy(any_executor, check, rng, shape):
    x = 5 * rng.standard_normal(shape, "f4")
    check(any_executor, lambda ctx: tensor(ctx, x).softmax(), limit=LIMIT)


def test_rms_norm_of_each_head_of_a_joined_projection(executor, check, rng):
    x, w = rng.standard_normal((7, 3 * 4 * 32), "f4"), rng.standard_normal(32, "f4")

    def normed(ctx):
        keys = tensor(ctx, x).chunk(1, 4 * 32)[1].reshape(7, 4, 32)
        return keys.rms_norm(tensor(ctx, w), eps=1e-6)

    check(executor, normed, limit=LIMIT)


def test_layer_norm_survives_a_mean_far_from_zero(executor, check, rng):
    # E[x²] - E[x]² would lose six of seven digits here. What is left is the error of the mean, a
    # few 2⁻²⁴ of 1000, in every value alike.
    x = (1000 + rng.standard_normal((3, 1000))).astype("f4")
    check(executor, lambda ctx: tensor(ctx, x).layer_norm(eps=1e-5), limit=1e-7)


def test_eps_rules_where_values_vanish(executor, check):
    x = np.array([[0, 0, 0], [1e-12, -1e-12, 0], [1e15, 1, -1e15]], "f4")
    check(executor, lambda ctx: tensor(ctx, x).rms_norm(eps=1e-5), limit=LIMIT)
    check(executor, lambda ctx: tensor(ctx, x).layer_norm(eps=1e-5), limit=LIMIT)


@pytest.mark.parametrize("cols", [3, 65, 999])
def test_softmax_gives_masked_values_nothing(any_executor, check, rng, cols):
    x = rng.standard_normal((4, cols), "f4")
    x[rng.uniform(size=x.shape) < 0.5] = -np.inf
    x[:, cols // 2] = 1
    check(any_executor, lambda ctx: tensor(ctx, x).softmax(), limit=LIMIT)


@pytest.mark.parametrize("cols", [65, 2048])
@pytest.mark.parametrize("special", [[np.nan], [np.inf], [np.nan, np.inf, -np.inf]], ids=str)
def test_softmax_of_rows_with_nan_or_infinity(executor, check, rng, special, cols):
    x = rng.standard_normal((3, cols), "f4")
    x[1, -len(special) :] = special
    check(executor, lambda ctx: tensor(ctx, x).softmax(), limit=LIMIT)


def test_softmax_of_large_values_does_not_overflow(any_executor, check):
    x = np.array([[1e30, 1e30, 0], [3e38, -3e38, 3e38], [-3e38, -3e38, -3e38], [88, 89, 500]], "f4")
    check(any_executor, lambda ctx: tensor(ctx, x).softmax(), limit=LIMIT)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax"])
def test_more_rows_than_65535(full, check, rng, name):
    x = rng.standard_normal((65535 + 9, 3), "f4")
    options = {} if name == "softmax" else {"eps": 1e-3}
    check(full, lambda ctx: getattr(tensor(ctx, x), name)(**options), limit=LIMIT)


def test_rms_norm_refuses_values_that_are_no_neighbours(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match="lie 8 apart, need 1"):
        ctx.zeros(3, 8).permute(1, 0).rms_norm(eps=1e-5)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax"])
def test_integers_and_scalars_are_refused(full, name):
    options = {} if name == "softmax" else {"eps": 1e-3}
    with Context(full) as ctx:
        with pytest.raises(DTypeError, match=f"{name}: x is i32, needs f32"):
            getattr(ctx.zeros(3, dtype=I32), name)(**options)
        with pytest.raises(ShapeError, match=rf"{name}: x is \(\) with 0 axes, needs 1 to 4"):
            getattr(ctx.zeros(), name)(**options)


def test_integer_weights_are_refused(full):
    with Context(full) as ctx, pytest.raises(DTypeError, match="weight is i32, needs f32"):
        ctx.zeros(3, 8, dtype=F16).rms_norm(ctx.zeros(8, dtype=I32), eps=1e-5)
