"""Gates and projections of chosen experts in one product, where their weights are neighbours."""

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.operands import weight_bytes
from tests.ops.test_experts import experts_of
from wgpu_backend.dtypes import F32, Q4_K, Q8_0
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.moe.experts import linear_by_expert
from wgpu_backend.testing import nmse

RULES = ["linear_by_expert_gated", "linear_by_expert_tiles"]


def drawn(rng, tokens=3, used=2, *, k=256, count=5):
    x = rng.standard_normal((tokens, 1, k)).astype("f4")
    return x, rng.integers(0, count, (tokens, used)).astype("i4")


def gated(ctx, weights, x, ids):
    """As models with weights side by side write it: gates are the first."""
    gate, up = weights.slice(0, 0, 5), weights.slice(0, 5, 10)
    x, ids = ctx.from_numpy(x), ctx.from_numpy(ids)
    return gate.mulmat_id(x, ids).swiglu(up.mulmat_id(x, ids))


@pytest.mark.parametrize(("dtype", "m"), [(Q4_K, 33), (Q8_0, 8)])
@pytest.mark.parametrize("apart", [True, False])
def test_the_product_is_right_on_every_device(any_gpu, check, rng, dtype, m, apart):
    data = weight_bytes(rng, 10 * m, 256, dtype, 1 / 16)
    x, ids = drawn(rng)

    def product(ctx):
        shape = (2, 5, m, 256) if apart else (5, 2 * m, 256)
        weights = experts_of(ctx, 10, m, 256, dtype, data).reshape(*shape)
        rows, chosen = ctx.from_numpy(x), ctx.from_numpy(ids)
        return linear_by_expert(weights, rows, chosen, activation="gelu" if apart else "silu")

    check(any_gpu, product, limit=1e-11)


@pytest.mark.parametrize("halves", [True, False])
def test_a_rule_joins_gate_and_projection(executors, monkeypatch, rng, halves):
    data = weight_bytes(rng, 10 * 8, 256, Q8_0, 1 / 16)
    x, ids = drawn(rng)

    def build(ctx):
        weights = experts_of(ctx, 10, 8, 256, Q8_0, data)
        if not halves:
            return [gated(ctx, weights, x, ids)]
        y = weights.reshape(5, 16, 256).mulmat_id(ctx.from_numpy(x), ctx.from_numpy(ids))
        return [y.slice(2, 0, 8).swiglu(y.slice(2, 8, 16))]

    names, (got,) = ran(executors("wide"), monkeypatch, RULES, build)
    apart, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    assert names == ["linear_by_expert gated"]
    assert "swiglu" in apart
    assert nmse(got, want) <= 1e-11


def test_rasterisers_keep_their_own_products(rasteriser, monkeypatch, rng):
    pytest.importorskip("wgpu_backend.kernels.rasteriser", reason="whose products these are")
    data = weight_bytes(rng, 10 * 8, 256, Q8_0, 1 / 16)
    x, ids = drawn(rng)
    build = lambda ctx: [gated(ctx, experts_of(ctx, 10, 8, 256, Q8_0, data), x, ids)]  # noqa: E731
    names, _ = ran(rasteriser, monkeypatch, RULES[:1], build)
    assert "swiglu" in names


def parts(y, a, b):
    return y.slice(2, *a).swiglu(y.slice(2, *b))


NEAR_MISSES = {
    "the projection first": lambda w, x, i: (
        w.slice(0, 5, 10).mulmat_id(x, i).swiglu(w.slice(0, 0, 5).mulmat_id(x, i))
    ),
    "experts between": lambda w, x, i: (
        w.slice(0, 0, 4).mulmat_id(x, i).swiglu(w.slice(0, 5, 9).mulmat_id(x, i))
    ),
    "other rows": lambda w, x, i: (
        w.slice(0, 0, 5).mulmat_id(x, i).swiglu(w.slice(0, 5, 10).mulmat_id(x.neg(), i))
    ),
    "other experts": lambda w, x, i: (
        w.slice(0, 0, 5).mulmat_id(x, i).swiglu(w.slice(0, 5, 10).mulmat_id(x, i.add(0)))
    ),
    "the gate read twice": lambda w, x, i: (
        lambda g: g.swiglu(w.slice(0, 5, 10).mulmat_id(x, i)) + g
    )(w.slice(0, 0, 5).mulmat_id(x, i)),
    "another activation": lambda w, x, i: (
        w.slice(0, 0, 5)
        .mulmat_id(x, i)
        .silu_alpha_limit(w.slice(0, 5, 10).mulmat_id(x, i), 1.7, 7.0)
    ),
    "halves turned": lambda w, x, i: parts(w.reshape(5, 16, 256).mulmat_id(x, i), (8, 16), (0, 8)),
    "quarters": lambda w, x, i: parts(w.reshape(5, 16, 256).mulmat_id(x, i), (0, 4), (4, 8)),
    "halves read twice": lambda w, x, i: (lambda y: parts(y, (0, 8), (8, 16)) + y.slice(2, 0, 8))(
        w.reshape(5, 16, 256).mulmat_id(x, i)
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_nearly_gated_stays_right(monkeypatch, rng, name):
    data = weight_bytes(rng, 80, 256, F32, 1 / 16)
    x, ids = drawn(rng)

    def build(ctx):
        weights = experts_of(ctx, 10, 8, 256, F32, data)
        return [NEAR_MISSES[name](weights, ctx.from_numpy(x), ctx.from_numpy(ids))]

    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    names, (got,) = ran(NumpyExecutor(), monkeypatch, RULES, build)
    assert "linear_by_expert gated" not in names
    np.testing.assert_array_equal(got, want)


def test_a_gate_takes_no_tiles_and_no_other_shapes(rng):
    x, ids = drawn(rng)
    with Context(NumpyExecutor()) as ctx:
        rows, chosen = ctx.from_numpy(x), ctx.from_numpy(ids)
        with pytest.raises(ShapeError, match=r"needs \(experts, 2 m, k\)"):
            linear_by_expert(ctx.zeros(3, 5, 8, 256), rows, chosen, activation="silu")
        with pytest.raises(ShapeError, match="needs an even number"):
            linear_by_expert(ctx.zeros(5, 9, 256), rows, chosen, activation="silu")
