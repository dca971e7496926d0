"""Sums of experts run as one op, with what is added to them."""

import numpy as np
import pytest

from tests.ops.fused import ran
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.testing import nmse

RULES = ["expert_sum"]


def summed(x, weights, residual, *, factor=None, others=()):
    """Experts' sum as models write it, its weights (tokens, used, 1)."""
    y = (x * weights).sum(1)
    y = y if factor is None else y.scale(factor=factor)
    for other in others:
        y = other.add(y)
    return residual.add(y)


def drawn(rng, tokens, used, m):
    shapes = (tokens, used, m), (tokens, used, 1), (tokens, m)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(("tokens", "used", "m"), [(1, 3, 192), (33, 1, 4), (5, 8, 260)])
def test_experts_times_weights_and_a_residual_are_one_op(gpu, monkeypatch, rng, tokens, used, m):
    x, weights, residual = drawn(rng, tokens, used, m)

    def build(ctx):
        return [summed(*map(ctx.from_numpy, (x, weights, residual)), factor=0.5)]

    names, (got,) = ran(gpu, monkeypatch, RULES, build)
    want = residual + (x.astype(np.float64) * weights).sum(1) * 0.5
    assert names == ["expert_sum"]
    assert nmse(got, want) <= 1e-12


def test_weights_on_the_left_of_a_view_are_found(monkeypatch, rng):
    x, weights, residual = drawn(rng, 5, 3, 8)

    def build(ctx):
        rows = ctx.from_numpy(np.concatenate([x, x])).slice(0, 5, 10)
        y = (ctx.from_numpy(weights).reshape(5, 3, 1) * rows).mean(1)
        return [y.add(ctx.from_numpy(residual))]

    names, (got,) = ran(NumpyExecutor(), monkeypatch, RULES, build)
    assert names == ["expert_sum"]
    assert nmse(got, (x * weights).mean(1) + residual) <= 1e-12


NEAR_MISSES = {
    "rows of three": lambda x, w, r: (x.slice(2, 0, 3).contiguous() * w).sum(1),
    "tokens summed": lambda x, w, r: (x * w).sum(0),
    "the largest": lambda x, w, r: (x * w).max(1),
    "a weight a value": lambda x, w, r: (x * r.reshape(5, 1, 8)).sum(1),
    "a weight an expert": lambda x, w, r: (x * w.slice(0, 0, 1)).sum(1),
    "a plain sum": lambda x, w, r: x.sum(1),
    "a row added": lambda x, w, r: (x * w).sum(1).add(r.slice(0, 0, 1)),
    "a number added": lambda x, w, r: (x * w).sum(1).scale(factor=2.0, bias=1.0),
    "scaled behind": lambda x, w, r: (x * w).sum(1).add(r).scale(factor=2.0),
    "two residuals": lambda x, w, r: (x * w).sum(1).add(r).add(r),
    "read twice": lambda x, w, r: (lambda y: y.add(r) * y)((x * w).sum(1)),
    "products read twice": lambda x, w, r: (lambda y: y.sum(1).add(y.max(1)))(x * w),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_nearly_such_a_sum_stays_right(monkeypatch, rng, name):
    arrays = drawn(rng, 5, 3, 8)

    def build(ctx):
        return [NEAR_MISSES[name](*map(ctx.from_numpy, arrays))]

    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    names, (got,) = ran(NumpyExecutor(), monkeypatch, RULES, build)
    assert names != ["expert_sum"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
