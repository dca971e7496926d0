"""Activations in sixteen bits: two bytes a value, one scale a group of 32."""

import dataclasses

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.dtypes import F16, IQ4_NL, Q2_K, Q4_0, Q4_K, Q6_K, Q8_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.activation_rounding import pays_in_q16
from wgpu_backend.ops.linear.attributes import Q16, Epilogue, Prologue
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8_rounding import PLANAR_COLUMNS
from wgpu_backend.ops.linear.q16 import q16_activations, q16_weighted
from wgpu_backend.ops.linear.q16 import q16_values as decoded
from wgpu_backend.testing import nmse, values_of

SPLIT = 1e-8  # NMSE of fifteen bits; some 3e-9


@pytest.fixture(params=["baseline", "wide"])
def kernels(request, executors):
    """The portable kernels, and those for hardware."""
    return executors(request.param)


def product(ctx, dtype, m, data, x):
    w = weight(ctx._executor, m, x.shape[-1], dtype, data)
    return linear(w, q16_activations(tensor(ctx, x)), prologue=Q16)


@pytest.mark.parametrize("shape", [(32,), (3, 96), (2, 5, 64)], ids=str)
def test_groups_stand_for_their_values(kernels, rng, shape):
    x = 5 * rng.standard_normal(shape, "f4")
    x.reshape(-1)[:3] = 0, -40, 40  # the largest, of either sign
    got, want = (
        values_of(e, lambda ctx: q16_activations(tensor(ctx, x)))
        for e in (kernels, NumpyExecutor())
    )
    assert got.shape == (5, *shape[:-1], shape[-1] // 32, 4)
    assert nmse(decoded(got), x) < SPLIT
    assert nmse(decoded(got), decoded(want)) < SPLIT
    tails = got[4].view("f4"), want[4].view("f4")
    np.testing.assert_allclose(*tails, rtol=1e-5, atol=1e-2)


def test_weights_of_a_norm_do_not_change_the_squares(kernels, rng):
    x, scale = rng.standard_normal((3, 96), "f4"), rng.standard_normal(96, "f4")
    got = values_of(kernels, lambda ctx: q16_weighted(tensor(ctx, x), tensor(ctx, scale)))
    assert nmse(decoded(got), x * scale) < SPLIT
    squares = (x.reshape(3, 3, 32) ** 2).sum(axis=-1)
    np.testing.assert_allclose(got[4, ..., 3].view("f4"), squares, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "m", "n"),
    [(Q4_0, 33, 1), (Q4_K, 3, 5), (Q6_K, 257, 2), (Q8_0, 1, 9), (IQ4_NL, 33, 1), (Q2_K, 33, 3)],
    ids=str,
)
def test_products(kernels, check, rng, dtype, m, n):
    data, x = weight_bytes(rng, m, 768, dtype, 1 / 32), rng.standard_normal((n, 768), "f4")
    # A single value may be what is left of many that cancel out.
    check(kernels, lambda ctx: product(ctx, dtype, m, data, x), limit=1e-7)
    exact = values_of(
        NumpyExecutor(),
        lambda ctx: weight(ctx._executor, m, 768, dtype, data).mulmat(tensor(ctx, x)),
    )
    assert nmse(values_of(kernels, lambda ctx: product(ctx, dtype, m, data, x)), exact) < 1e-7


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_they_are_as_fine_as_two_parts_of_eight_bits(rng, offset):
    data = weight_bytes(rng, 64, 1024, Q4_0, 1 / 32)
    x = (offset + rng.standard_normal((4, 1024))).astype("f4")
    exact = values_of(
        NumpyExecutor(),
        lambda ctx: weight(ctx._executor, 64, 1024, Q4_0, data).mulmat(tensor(ctx, x)),
    )
    assert nmse(values_of(NumpyExecutor(), lambda c: product(c, Q4_0, 64, data, x)), exact) < SPLIT


@pytest.mark.parametrize("scale", [1e-30, 3e4, 1e36])
def test_values_of_any_size(kernels, check, rng, scale):
    data, x = weight_bytes(rng, 33, 96, Q4_0, 1 / 8), rng.standard_normal((2, 96), "f4")
    x[1, :32] = 0
    x = np.clip(x, -3, 3) * np.float32(scale)
    check(kernels, lambda ctx: product(ctx, Q4_0, 33, data, x), limit=SPLIT)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_do_not_overflow(kernels, check, sign):
    quants = np.full((33 * 3, 32), 0x80, "u1")  # -128
    half = np.tile(np.frombuffer(np.float16(0.5).tobytes(), "u1"), (33 * 3, 1))
    data, x = np.hstack([half, quants]).tobytes(), np.full((2, 96), sign * 2.0, "f4")
    check(kernels, lambda ctx: product(ctx, Q8_0, 33, data, x), limit=1e-12)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_group_that_is_not_finite_makes_its_column_nan(kernels, rng, bad):
    data, x = weight_bytes(rng, 33, 96, Q4_0, 1 / 8), rng.standard_normal((2, 96), "f4")
    x[1, 40] = bad
    got = values_of(kernels, lambda ctx: product(ctx, Q4_0, 33, data, x))
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 5])
def test_halves_of_a_weight_are_joined_behind_a_norm(kernels, check, rng, n):
    data = weight_bytes(rng, 2 * 33, 512, Q4_K, 1 / 16)
    x, scale = rng.standard_normal((n, 512), "f4"), rng.standard_normal(512, "f4")

    def build(ctx):
        rows = q16_weighted(tensor(ctx, x), tensor(ctx, scale))
        both = weight(ctx._executor, 2 * 33, 512, Q4_K, data)
        return linear(both, rows, prologue=Prologue("q16", 1e-5), epilogue=Epilogue("silu"))

    check(kernels, build, limit=1e-7)


@pytest.fixture
def device(executors):
    """Of a GPU that multiplies packed bytes in one instruction."""
    wide = executors("wide")
    return wide.as_if(dataclasses.replace(wide.capabilities, integer_dot=True))


def logits(rng, n):
    data, x = weight_bytes(rng, 64, 64, Q4_0, 1 / 8), rng.standard_normal((n, 64), "f4")
    gain = rng.standard_normal(64, "f4")

    def build(ctx):
        rows = tensor(ctx, x).rms_norm(tensor(ctx, gain), eps=1e-5)
        return [weight(ctx._executor, 64, 64, Q4_0, data).mulmat_full_prec(rows)]

    return build


def test_logits_of_few_columns_make_their_norm(device, monkeypatch, rng):
    pytest.importorskip("wgpu_backend.kernels.gpu", reason="whose kernel makes it pay")
    build = logits(rng, 3)
    rules = ["linear_q16", "q16_weighted", "linear_q8_pair", "rms_norm_pair"]
    names, got = ran(device, monkeypatch, rules, build, exact=False)
    assert names == ["q16_weighted", "linear q16 full"]
    with Context(NumpyExecutor()) as ctx:
        assert nmse(got[0], build(ctx)[0].numpy()) < SPLIT


def test_those_of_many_columns_stay_in_two_parts(device, monkeypatch, rng):
    rules = ["linear_q16", "q16_weighted", "linear_q8_pair", "rms_norm_pair"]
    names, _ = ran(device, monkeypatch, rules, logits(rng, PLANAR_COLUMNS + 1), exact=False)
    assert names == ["rms_norm_pair", "linear q8_pair full"]


def test_they_pay_where_bytes_are_multiplied(device):
    known = device.capabilities
    assert pays_in_q16(Q4_0, 1, known)
    assert pays_in_q16(Q2_K, PLANAR_COLUMNS, known)
    assert not pays_in_q16(F16, 1, known)
    assert not pays_in_q16(Q4_0, PLANAR_COLUMNS + 1, known)
    assert not pays_in_q16(Q4_0, 1, dataclasses.replace(known, integer_dot=False))
    assert not pays_in_q16(Q4_0, 1, dataclasses.replace(known, planar_groups=False))
    measured = {"integer_dot": False, "rounded": frozenset({"q4_0 one split"})}
    assert pays_in_q16(Q4_0, 1, dataclasses.replace(known, **measured))
    slower = dataclasses.replace(known, unrounded=frozenset({"q4_0 one split"}))
    assert not pays_in_q16(Q4_0, 1, slower)


def test_operands_that_do_not_fit_are_refused():
    with Context(NumpyExecutor()) as ctx:
        w = ctx.from_bytes(Q8_0, bytes(Q8_0.nbytes(64)), 1, 64)
        with pytest.raises(ShapeError, match=r"x is \(5, 2, 3, 4\).*needs x of \(5, 2, 2, 4\)"):
            linear(w, q16_activations(ctx.zeros(2, 96)), prologue=Q16)
        dense = ctx.zeros(1, 64)
        with pytest.raises(DTypeError, match="f32"):
            linear(dense, q16_activations(ctx.zeros(2, 64)), prologue=Q16)
        with pytest.raises(ShapeError, match=r"rows of x have 33 values, needs a multiple of 32"):
            q16_activations(ctx.zeros(2, 33))
        with pytest.raises(ShapeError, match="weight"):
            q16_weighted(ctx.zeros(2, 32), ctx.zeros(33))
