"""The second product of a token's experts and the sum of what they give, as one op."""

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.operands import LAYOUTS, weight_bytes
from tests.ops.test_experts import experts_of
from wgpu_backend.dtypes import BF16, F16, F32, I32, IQ2_S, IQ3_S, MXFP4, Q4_K, Q6_K, Q8_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.moe.expert_sum import linear_by_expert_sum
from wgpu_backend.testing import nmse

RULES = ["expert_sum", "linear_by_expert_sum"]
COUNT, K = 5, 64


def drawn(rng, tokens, used, m, k=K):
    """Rows, ids, shares and a residual."""
    shapes = (tokens, used, k), (tokens, used, 1), (tokens, m)
    x, shares, residual = (rng.standard_normal(shape).astype("f4") for shape in shapes)
    return x, rng.integers(0, COUNT, (tokens, used)).astype("i4"), shares, residual


@pytest.mark.parametrize(
    ("dtype", "tokens", "used", "m"),
    [(F32, 1, 3, 33), (Q8_0, 7, 8, 4), (MXFP4, 3, 2, 1), (BF16, 2, 1, 65)],
    ids=str,
)
@pytest.mark.parametrize("adds", [True, False])
def test_the_sum_is_right_on_every_device(any_gpu, check, rng, dtype, tokens, used, m, adds):
    data = weight_bytes(rng, COUNT * m, K, dtype, K**-0.5)
    x, ids, shares, residual = drawn(rng, tokens, used, m)

    def summed(ctx):
        weights = experts_of(ctx, COUNT, m, K, dtype, data)
        addend = ctx.from_numpy(residual) if adds else None
        given = map(ctx.from_numpy, (x, ids, shares))
        return linear_by_expert_sum(weights, *given, addend, factor=0.5)

    check(any_gpu, summed, limit=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_some_experts_of_views(gpu, check, rng, layout):
    data = weight_bytes(rng, (COUNT + 2) * 9, K, F16, K**-0.5)
    x, ids, shares, residual = drawn(rng, 3, 2, 9)

    def summed(ctx):
        weights = experts_of(ctx, COUNT + 2, 9, K, F16, data).slice(0, 2, COUNT + 2)
        how = LAYOUTS[layout]
        given = how(ctx, x, F16), how(ctx, ids, I32), how(ctx, shares, F32), how(ctx, residual, F32)
        return linear_by_expert_sum(weights, *given, shape=(9, 3))

    check(gpu, summed, limit=1e-11)


def model(ctx, dtype, data, arrays, *, m=32, factor=None, adds=True):
    """As models write it."""
    x, ids, shares, residual = map(ctx.from_numpy, arrays)
    y = (experts_of(ctx, COUNT, m, K, dtype, data).mulmat_id(x, ids) * shares).sum(1)
    y = y if factor is None else y.scale(factor=factor)
    return [residual.add(y) if adds else y]


@pytest.mark.parametrize(
    ("dtype", "k", "how"),
    [(Q8_0, K, {"factor": 2.5}), (Q6_K, 256, {"adds": False}), (Q4_K, 256, {})],
    ids=str,
)
def test_a_rule_sums_within_the_product(executors, monkeypatch, rng, dtype, k, how):
    monkeypatch.setattr("tests.ops.test_summed_experts.K", k)
    data = weight_bytes(rng, COUNT * 32, k, dtype, k**-0.5)
    arrays = drawn(rng, 3, 2, 32, k)
    build = lambda ctx: model(ctx, dtype, data, arrays, **how)  # noqa: E731
    names, (got,) = ran(executors("wide"), monkeypatch, RULES, build)
    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    assert [name.split()[0] for name in names] == ["linear_by_expert_sum"]
    assert nmse(got, want) <= 1e-11


def test_rasterisers_keep_their_own_products(rasteriser, monkeypatch, rng):
    pytest.importorskip("wgpu_backend.kernels.rasteriser", reason="whose products these are")
    data, arrays = weight_bytes(rng, COUNT * 32, K, Q8_0, 1 / 8), drawn(rng, 3, 2, 32)
    names, _ = ran(rasteriser, monkeypatch, RULES, lambda c: model(c, Q8_0, data, arrays))
    assert names == ["linear_by_expert", "expert_sum"]


NEAR_MISSES = {
    "no shares": lambda w, x, i, s, r: w.mulmat_id(x, i).sum(1).add(r),
    "a bias": lambda w, x, i, s, r: (w.mulmat_id(x, i).add_id(w[:, :, 0], i) * s).sum(1),
    "products read twice": lambda w, x, i, s, r: (lambda y: (y * s).sum(1) + y.sum(1))(
        w.mulmat_id(x, i)
    ),
    "experts made of others": lambda w, x, i, s, r: (w.mulmat_id(x, i).neg() * s).sum(1),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_nearly_such_a_sum_stays_right(monkeypatch, rng, name):
    arrays = [rng.standard_normal((COUNT, 32, K), "f4"), *drawn(rng, 3, 2, 32)]
    build = lambda ctx: [NEAR_MISSES[name](*map(ctx.from_numpy, arrays))]  # noqa: E731
    rules = [*RULES, "linear_by_expert_add"]
    names, (got,) = ran(NumpyExecutor(), monkeypatch, rules, build)
    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    assert "linear_by_expert_sum" not in [word for name in names for word in name.split()]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "adds"), [(Q6_K, True), (IQ2_S, True), (IQ3_S, True), (IQ3_S, False)], ids=str
)
def test_what_has_no_bindings_left_stays_two_ops(executors, monkeypatch, rng, dtype, adds):
    monkeypatch.setattr("tests.ops.test_summed_experts.K", 256)
    data, arrays = weight_bytes(rng, COUNT * 32, 256, dtype, 1 / 16), drawn(rng, 3, 2, 32, 256)
    build = lambda ctx: model(ctx, dtype, data, arrays, adds=adds)  # noqa: E731
    names, _ = ran(executors("wide"), monkeypatch, RULES, build)
    assert "linear_by_expert_sum" not in names


def test_the_op_refuses_what_does_not_fit(rng):
    with Context(NumpyExecutor()) as ctx:
        x, ids, shares, residual = map(ctx.from_numpy, drawn(rng, 3, 2, 8))
        weights = ctx.zeros(COUNT, 8, K)
        with pytest.raises(ShapeError, match="there are 3 shares, 3 tokens with 2 experts"):
            linear_by_expert_sum(weights, x, ids, shares.slice(1, 0, 1))
        with pytest.raises(ShapeError, match=r"addend is \(2, 8\), needs 24 values"):
            linear_by_expert_sum(weights, x, ids, shares, residual.slice(0, 0, 2))
        with pytest.raises(ShapeError, match=r"result is \(3, 9\), needs as many values"):
            linear_by_expert_sum(weights, x, ids, shares, shape=(3, 9))
        with pytest.raises(ShapeError, match="rows of weights have 33 values, needs a multiple"):
            linear_by_expert_sum(ctx.zeros(COUNT, 8, 33), x.slice(2, 0, 33), ids, shares)
        data = weight_bytes(rng, COUNT * 8, 256, Q6_K)
        six, x = experts_of(ctx, COUNT, 8, 256, Q6_K, data), ctx.zeros(3, 2, 256)
        with pytest.raises(DTypeError, match="q6_k takes 4 bindings, needs at most 3 beside"):
            linear_by_expert_sum(six, x, ids, shares, residual)
        data = weight_bytes(rng, COUNT * 8, 256, IQ3_S)
        with pytest.raises(DTypeError, match="iq3_s takes 5 bindings, needs at most 4; use mulm"):
            linear_by_expert_sum(experts_of(ctx, COUNT, 8, 256, IQ3_S, data), x, ids, shares)
