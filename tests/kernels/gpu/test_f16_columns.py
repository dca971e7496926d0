"""Products of few columns in f16, for hardware without a dot product of bytes."""

import dataclasses

import numpy as np
import pytest

from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.dtypes import F16, IQ4_NL, MXFP4, Q4_0, Q4_K, Q6_K, Q8_0
from wgpu_backend.errors import DeviceError, DTypeError, ShapeError
from wgpu_backend.graph.capabilities import Tile
from wgpu_backend.kernels.gpu.cases import F16_TRIALS
from wgpu_backend.kernels.gpu.matvec import COLUMNS, IN_BYTES
from wgpu_backend.kernels.gpu.rows import f16_activations, f16_weighted
from wgpu_backend.ml.calibration.self_test import _fused_finding
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.linear.attributes import Q8, Epilogue, Prologue
from wgpu_backend.ops.linear.f16_groups import NIBBLES
from wgpu_backend.ops.linear.f16_groups import f16_values as decoded
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import FORMATS, q8_activations
from wgpu_backend.ops.linear.tiles import key
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

OF_F16 = 1e-5  # eleven bits, and sums of 32 in as many: some 1e-6
OF_BYTES = 4e-5  # what eight bits cost
OF_ONE = 1e-4  # of one value, whose products may cancel out


@pytest.fixture
def wide(executors):
    return executors("wide")


@pytest.fixture
def without_dot(wide):
    """Hardware that multiplies f16 faster than packed bytes."""
    return wide.as_if(dataclasses.replace(wide.capabilities, integer_dot=False))


def rounded(ctx, x, dtype, rounding=f16_activations, *operands):
    return rounding(tensor(ctx, x), *operands, planar=dtype != F16, nibbles=dtype in NIBBLES)


def form(dtype):
    return "f16_nibbles" if dtype in NIBBLES else "f16"


def product(ctx, dtype, m, data, x):
    w = weight(ctx._executor, m, x.shape[-1], dtype, data)
    return linear(w, rounded(ctx, x, dtype), prologue=Prologue(form(dtype)))


@pytest.mark.parametrize(
    ("dtype", "m", "n"),
    [
        (Q4_0, 33, 1),
        (Q4_0, 257, 8),
        (Q4_K, 3, 1),
        (Q4_K, 35, 3),
        (Q6_K, 1, 1),
        (Q6_K, 33, 2),
        (Q8_0, 33, 1),
        (Q8_0, 5, 16),
        (IQ4_NL, 33, 1),
        (MXFP4, 33, 5),
        (F16, 35, 1),
        (F16, 33, 9),
    ],
    ids=str,
)
def test_products_are_nearer_to_exact_ones_than_those_in_eight_bits(wide, check, rng, dtype, m, n):
    data, x = weight_bytes(rng, m, 768, dtype, 1 / 32), rng.standard_normal((n, 768), "f4")
    alone = m * n == 1
    check(
        wide,
        lambda ctx: product(ctx, dtype, m, data, x),
        limit=OF_ONE if alone else OF_F16,
    )
    exact = values_of(
        NumpyExecutor(),
        lambda ctx: weight(ctx._executor, m, 768, dtype, data).mulmat(tensor(ctx, x)),
    )
    assert nmse(values_of(wide, lambda ctx: product(ctx, dtype, m, data, x)), exact) < (
        OF_ONE if alone else OF_BYTES
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "k"),
    [*((dtype, 1536) for dtype in (*FORMATS, F16)), *((Q8_0, k) for k in (2048, 4096, 6144))],
    ids=str,
)
def test_rows_whose_scales_are_whole_words(wide, check, rng, dtype, k):
    """Eight rows of 32 lanes, of which a work group has two, and the last half of one has none.

    Of Q8_0, lanes take rows of 2048 and 4096 in one iteration, of two and four groups, and those
    of 6144 in three of two.
    """
    tuned = {key(IN_BYTES, dtype, 1): Tile(8, 1, 32)}
    wide = wide.as_if(dataclasses.replace(wide.capabilities, tuned=tuned))
    data, x = weight_bytes(rng, 24, k, dtype, 1 / 32), rng.standard_normal((1, k), "f4")
    check(wide, lambda ctx: product(ctx, dtype, 24, data, x), limit=OF_F16)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "last"), [(0, 600), (3, 19)], ids=["all", "slice"])
def test_parts_of_a_weight(executors, check, rng, first, last):
    """Rows of several bindings, or some of one, eight a lane, and two groups of each."""
    split = executors("split wide")
    tuned = {key(IN_BYTES, Q8_0, 1): Tile(8, 1, 32)}
    split = split.as_if(dataclasses.replace(split.capabilities, tuned=tuned))
    data, x = weight_bytes(rng, 600, 2048, Q8_0, 1 / 32), rng.standard_normal((1, 2048), "f4")

    def build(ctx):
        rows = weight(ctx._executor, 600, 2048, Q8_0, data).slice(0, first, last)
        return linear(rows, rounded(ctx, x, Q8_0), prologue=Prologue(form(Q8_0)))

    check(split, build, limit=OF_F16)


@pytest.mark.parametrize("dtype", [Q4_0, Q8_0, F16], ids=str)
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_rounding_is_finer_than_to_eight_bits(rng, dtype, offset):
    """Of values around nought and of such that are mostly alike, in NumPy."""
    data = weight_bytes(rng, 64, 1024, dtype, 1 / 32)
    x = (offset + rng.standard_normal((4, 1024))).astype("f4")

    def error(build):
        return nmse(values_of(NumpyExecutor(), build), exact)

    def matrix(ctx):
        return weight(ctx._executor, 64, 1024, dtype, data)

    exact = values_of(NumpyExecutor(), lambda ctx: matrix(ctx).mulmat(tensor(ctx, x)))
    in_f16 = error(lambda ctx: product(ctx, dtype, 64, data, x))
    assert in_f16 < 2e-7
    if dtype != F16:
        assert in_f16 < error(
            lambda ctx: linear(matrix(ctx), q8_activations(tensor(ctx, x)), prologue=Q8)
        )


@pytest.mark.parametrize("scale", [1e-30, 3e4, 1e36])
def test_values_of_any_size(wide, check, rng, scale):
    data, x = weight_bytes(rng, 33, 96, Q4_0, 1 / 8), rng.standard_normal((2, 96), "f4")
    x[1, :32] = 0
    x = np.clip(x, -3, 3) * np.float32(scale)
    check(wide, lambda ctx: product(ctx, Q4_0, 33, data, x), limit=OF_F16)


@pytest.mark.parametrize("dtype", [Q4_0, Q8_0, F16], ids=str)
def test_the_largest_sums_are_finite(wide, check, rng, dtype):
    """All weights and values as large as can be, and of one sign."""
    if dtype == F16:
        data = np.full((33, 96), 65504, "f2").tobytes()
    else:
        quants = np.full((33 * 3, dtype.block_nbytes - 2), 0xFF if dtype == Q4_0 else 0x80, "u1")
        scale = np.frombuffer(np.float16(0.5).tobytes(), "u1")
        data = np.hstack([np.tile(scale, (33 * 3, 1)), quants]).tobytes()
    x = np.full((2, 96), 1.99997, "f4")
    # Errors of sums that grow and grow are all of one sign, too.
    check(wide, lambda ctx: product(ctx, dtype, 33, data, x), limit=OF_BYTES)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_group_that_is_not_finite_makes_its_column_nan(wide, rng, bad):
    data, x = weight_bytes(rng, 33, 96, Q4_0, 1 / 8), rng.standard_normal((2, 96), "f4")
    x[1, 40] = bad
    got = values_of(wide, lambda ctx: product(ctx, Q4_0, 33, data, x))
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


@pytest.mark.parametrize("dtype", [Q4_K, F16], ids=str)
@pytest.mark.parametrize("n", [1, 5])
def test_halves_of_a_weight_are_joined_behind_a_norm(wide, check, rng, dtype, n):
    data = weight_bytes(rng, 2 * 33, 512, dtype, 1 / 16)
    x, scale = rng.standard_normal((n, 512), "f4"), rng.standard_normal(512, "f4")

    def build(ctx):
        rows = rounded(ctx, x, dtype, f16_weighted, tensor(ctx, scale))
        both = weight(ctx._executor, 2 * 33, 512, dtype, data)
        prologue = Prologue(form(dtype), eps=1e-5)
        return linear(both, rows, prologue=prologue, epilogue=Epilogue("silu"))

    # The error of a gate meets that of what it multiplies.
    check(wide, build, limit=2 * OF_F16)


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("nibbles", [False, True])
@pytest.mark.parametrize("shape", [(32,), (3, 5, 96)], ids=str)
def test_groups_stand_for_their_values(wide, rng, shape, planar, nibbles):
    x = rng.standard_normal(shape, "f4")
    words = values_of(
        wide, lambda ctx: f16_activations(tensor(ctx, x), planar=planar, nibbles=nibbles)
    )
    assert nmse(decoded(words, nibbles), x) < 1e-7


def rules_used(executor, build):
    with Context(executor) as ctx:
        recorded = ctx.record(build(ctx))
        names = [op for op, _, _ in recorded.timed()]
        recorded.close()
        return names


def dense_products(rng):
    data, x = weight_bytes(rng, 64, 64, Q4_0, 1 / 8), rng.standard_normal((1, 64), "f4")
    w, bias = rng.standard_normal((64, 64), "f4"), rng.standard_normal(64, "f4")

    def build(ctx):
        rows = tensor(ctx, x).rms_norm(tensor(ctx, bias), eps=1e-5)
        both = weight(ctx._executor, 64, 64, Q4_0, data)
        gate, up = both.slice(0, 0, 32), both.slice(0, 32, 64)
        joined = gate.mulmat(rows).swiglu(up.mulmat(rows))
        return tensor(ctx, w[:, :32], F16).linear(joined, tensor(ctx, bias))

    return build


@pytest.mark.slow
def test_rules_make_them_where_rounding_is_allowed(without_dot, rng):
    build = dense_products(rng)
    exact = values_of(without_dot, build)
    without_dot.rules = fusions(exact=False)
    names = rules_used(without_dot, build)
    assert names == ["f16_weighted", "linear", "linear"]  # the first rounds for the second
    assert 1e-10 < nmse(values_of(without_dot, build), exact) < OF_F16


@pytest.mark.parametrize("known", [{"integer_dot": True}, {"f16": False}], ids=str)
def test_no_rule_makes_them_elsewhere(wide, rng, monkeypatch, known):
    other = wide.as_if(dataclasses.replace(wide.capabilities, **known))
    other.rules = fusions(exact=False)
    assert not {"f16_weighted", "f16_activations"} & {*rules_used(other, dense_products(rng))}


@pytest.mark.parametrize("n", [1, COLUMNS + 1])
def test_biases_of_gates_are_kept(wide, check, rng, monkeypatch, n):
    w, bias = rng.standard_normal((64, 64), "f4"), rng.standard_normal((2, 32), "f4")
    x = rng.standard_normal((n, 64), "f4")

    def build(ctx):
        both, rows = tensor(ctx, w, F16), tensor(ctx, x)
        halves = both.slice(0, 0, 32), both.slice(0, 32, 64)
        gate, up = (h.linear(rows, tensor(ctx, b)) for h, b in zip(halves, bias, strict=True))
        return gate.swiglu(up)

    monkeypatch.setattr(wide, "rules", fusions(exact=False))
    check(wide, build, limit=2 * OF_F16)


def test_devices_without_f16_refuse_them(executors, rng):
    x = rng.standard_normal((1, 64), "f4")
    data = weight_bytes(rng, 8, 64, Q4_0)
    with pytest.raises(DeviceError, match=r"(linear|f16_activations): the device has no kernel"):
        values_of(executors("baseline"), lambda ctx: product(ctx, Q4_0, 8, data, x))


def test_operands_that_do_not_fit_are_refused(full):
    with Context(full) as ctx:
        w = ctx.from_bytes(Q8_0, bytes(Q8_0.nbytes(64)), 1, 64)
        rows = f16_activations(ctx.zeros(2, 96), planar=True)
        with pytest.raises(ShapeError, match=r"x is \(5, 2, 3, 4\).*needs .*\(5, 2, 2, 4\)"):
            linear(w, rows, prologue=Prologue("f16"))
        rows = f16_activations(ctx.zeros(2, 64), planar=True, nibbles=True)
        with pytest.raises(DTypeError, match="q8_0"):
            linear(w, rows, prologue=Prologue("f16_nibbles"))
        with pytest.raises(ShapeError, match=r"rows of x have 33 values, needs a multiple of 32"):
            f16_activations(ctx.zeros(2, 33))


@pytest.mark.parametrize("integer_dot", [False, True])
def test_each_rule_has_a_trial_in_which_it_applies(wide, integer_dot):
    # Nothing runs, so a rasteriser of four lanes may stand for a GPU of eight.
    known = {"rounded": frozenset(), "unrounded": EVERY_PRODUCT, "integer_dot": integer_dot}
    device = wide.as_if(dataclasses.replace(wide.capabilities, lanes=8, **known))
    assert F16_TRIALS
    for trial in F16_TRIALS:
        with_it = recorded_by(device, (*trial.before, trial.rule), trial.build)
        assert with_it != recorded_by(device, trial.before, trial.build)


@pytest.mark.slow
@pytest.mark.parametrize("trial", F16_TRIALS, ids=lambda trial: trial.rule)
@pytest.mark.parametrize("integer_dot", [False, True])
def test_the_self_test_tries_them_in_place_of_bytes(wide, trial, integer_dot):
    known = {"rounded": EVERY_PRODUCT, "integer_dot": integer_dot}
    device = wide.as_if(dataclasses.replace(wide.capabilities, **known))
    found = _fused_finding(device, (trial.rule, trial.largest_error, trial.build))
    assert found.passed
    assert found.error > 1e-9  # that of f16: something was rounded


def recorded_by(executor, rules, make):
    executor.rules = fusions(rules, exact=False)
    with Context(DryRunExecutor(executor, lambda shader: None)) as ctx:
        recorded = ctx.record(make(ctx, np.random.default_rng(1)))
        return [node.call.op.name for node, _ in recorded.plan.steps]
