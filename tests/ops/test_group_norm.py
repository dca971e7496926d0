"""Norms of groups of channels, in parts, with silu in the same dispatch."""

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.operands import tensor
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.testing import nmse

# Sums of a few thousand f32 in another order, and a square root: 1e-6 of a value, squared.
LIMIT = 1e-12
SHAPES = [((1, 3), 3), ((2, 33, 6), 2), ((1, 7, 5, 257), 1), ((2, 9, 11, 20), 5), ((3, 1, 64), 32)]


@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
@pytest.mark.parametrize(("weighted", "biased"), [(False, False), (True, False), (True, True)])
def test_group_norm_agrees_with_numpy(any_executor, check, rng, shape, groups, weighted, biased):
    x, w, b = (rng.standard_normal(s, "f4") for s in (shape, shape[-1], shape[-1]))

    def normed(ctx):
        weight = tensor(ctx, w) if weighted else None
        return tensor(ctx, x).group_norm(groups, weight, tensor(ctx, b) if biased else None)

    check(any_executor, normed, limit=LIMIT)


def test_a_large_picture_is_reduced_in_parts(gpu, rng):
    # A mean far from zero, over many parts of which the last is short: E[x²] - E[x]² would lose
    # all digits. What is left is the error of the mean, a few 2⁻²⁴ of 300, in values of about 1.
    x = (300 + rng.standard_normal((1, 173, 257, 8))).astype("f4")
    with Context(gpu) as ctx:
        got = tensor(ctx, x).group_norm(2).numpy()
    wide = x.astype("f8").reshape(-1, 2, 4)
    apart = wide - wide.mean((0, 2), keepdims=True)
    want = apart / np.sqrt((apart**2).mean((0, 2), keepdims=True) + 1e-5)
    assert nmse(got.reshape(want.shape), want) <= 1e-8


@pytest.mark.parametrize("channels", [6, 8])
def test_silu_joins_the_norm(any_gpu, monkeypatch, rng, channels):
    x = rng.standard_normal((2, 5, 7, channels), "f4")
    w = rng.standard_normal(channels, "f4")

    def build(ctx):
        return [tensor(ctx, x).group_norm(2, tensor(ctx, w), tensor(ctx, w)).silu().sqr()]

    names, (got,) = ran(any_gpu, monkeypatch, ["group_norm_silu"], build)
    assert names == ["channel_moments", "group_moments", "group_normed", "sqr"]
    groups = x.astype("f8").reshape(2, 35, 2, -1)
    apart = groups - groups.mean((1, 3), keepdims=True)
    y = apart / np.sqrt((apart**2).mean((1, 3), keepdims=True) + 1e-5)
    y = y.reshape(x.shape) * w + w
    assert nmse(got, (y / (1 + np.exp(-y))) ** 2) <= LIMIT


def test_a_norm_that_others_read_stays(any_gpu, monkeypatch, rng):
    x = rng.standard_normal((2, 5, 8), "f4")

    def build(ctx):
        y = tensor(ctx, x).group_norm(2)
        return [y.silu(), y.sqr()]

    names, _ = ran(any_gpu, monkeypatch, ["group_norm_silu"], build)
    assert "silu" in names


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        x = ctx.zeros(1, 5, 8)
        for given, message in [
            ((3,), "8 channels, not a multiple of 3 groups"),
            ((0,), "8 channels, not a multiple of 0 groups"),
            ((2, ctx.zeros(7)), r"weight is \(7,\), x has 8 channels"),
            ((2, None, ctx.zeros(8, 1)), r"bias is \(8, 1\), x has 8 channels"),
        ]:
            with pytest.raises(ShapeError, match=f"group_norm: {message}"):
                x.group_norm(*given)
        with pytest.raises(DTypeError, match="group_norm: x is i32"):
            ctx.zeros(1, 8, dtype=I32).group_norm(2)
        with pytest.raises(ShapeError, match="with 1 axes, needs 2 to 8"):
            ctx.zeros(8).group_norm(2)
