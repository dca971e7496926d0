"""A norm and the residual after it, in one op."""

import numpy as np
import pytest

from tests.ops.fused import ran
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.testing import nmse

RULES = ["rms_norm_add"]


@pytest.mark.parametrize(("rows", "cols"), [(1, 192), (3, 33), (5, 2052), (257, 4)])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_residual_is_added_in_the_norm(any_gpu, monkeypatch, rng, rows, cols, weighted):
    x, residual = rng.standard_normal((2, rows, cols)).astype("f4")
    weight = rng.standard_normal(cols).astype("f4")

    def build(ctx):
        y = ctx.from_numpy(x).rms_norm(ctx.from_numpy(weight) if weighted else None, eps=1e-5)
        return [ctx.from_numpy(residual).add(y)]

    names, (got,) = ran(any_gpu, monkeypatch, RULES, build)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    want = residual + want * (weight if weighted else 1)
    assert names == ["rms_norm_add"]
    assert nmse(got, want) <= 1e-12


NEAR_MISSES = {
    "a row": lambda x, r: x.rms_norm(eps=1e-5).add(r.slice(0, 0, 1)),
    "another shape": lambda x, r: x.rms_norm(eps=1e-5).reshape(3, 5, 4).add(r.reshape(3, 5, 4)),
    "two readers": lambda x, r: (lambda y: y.add(r).mul(y))(x.rms_norm(eps=1e-5)),
    "strided": lambda x, r: x.rms_norm(eps=1e-5).add(r.reshape(4, 15).transpose().reshape(15, 4)),
    "not added": lambda x, r: r.sub(x.rms_norm(eps=1e-5)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_nearly_such_a_sum_stays_right(monkeypatch, rng, name):
    x, residual = rng.standard_normal((2, 15, 4)).astype("f4")

    def build(ctx):
        return [NEAR_MISSES[name](ctx.from_numpy(x), ctx.from_numpy(residual))]

    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    names, (got,) = ran(NumpyExecutor(), monkeypatch, RULES, build)
    assert "rms_norm_add" not in names
    np.testing.assert_allclose(got, want, rtol=1e-6)
