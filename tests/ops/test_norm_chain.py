"""Norms and what follows them value by value, in one op."""

import numpy as np
import pytest

from tests.ops.fused import ran
from wgpu_backend.dtypes import F16
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.elementwise.fusion import Step
from wgpu_backend.ops.reduce.norm_chain import norm_chain
from wgpu_backend.testing import nmse

RULES = ["chain", "norm_chain", "rms_norm_add"]
EPS = {"eps": 1e-3}

# Of rows x (tokens, heads, 32), weights w and b (32,), as large r and g, and numbers n (heads, 1).
CHAINS = {
    "a gate": lambda x, w, b, r, g, n: g.reshape(len_of(g), -1).swiglu(
        x.rms_norm(w, **EPS).reshape(len_of(g), -1)
    ),
    "a layer norm": lambda x, w, b, r, g, n: x.layer_norm(w, b, **EPS).mul(g.sigmoid()).sub(r),
    "neither weight": lambda x, w, b, r, g, n: x.layer_norm(**EPS).scale(factor=0.25),
    "a residual and a factor": lambda x, w, b, r, g, n: r.add(x.rms_norm(w, **EPS)).mul(n),
    "weights behind": lambda x, w, b, r, g, n: x.layer_norm(**EPS).mul(w).add(b).mul(n).add(r),
    "twice": lambda x, w, b, r, g, n: (lambda y: y.mul(y.sigmoid()))(x.rms_norm(w, **EPS).mul(n)),
    "two norms": lambda x, w, b, r, g, n: r.rms_norm(b, **EPS).add(x.rms_norm(w, **EPS)).mul(n),
    "another without a weight": lambda x, w, b, r, g, n: g.mul(x.rms_norm(w, **EPS)).sub(
        r.rms_norm(**EPS)
    ),
    "strided rows": lambda x, w, b, r, g, n: (
        x.slice(1, 1, 3).rms_norm(w, **EPS).mul(r.slice(1, 0, 2))
    ),
}


def len_of(x):
    return x.shape[0]


def drawn(rng, tokens, heads, cols):
    shapes = [(tokens, heads, cols), (cols,), (cols,), *[(tokens, heads, cols)] * 2, (heads, 1)]
    return [rng.standard_normal(shape).astype("f4") for shape in shapes]


@pytest.mark.parametrize(("tokens", "heads", "cols"), [(1, 3, 32), (7, 5, 132)])
@pytest.mark.parametrize("name", CHAINS)
def test_what_follows_a_norm_is_one_op(any_gpu, monkeypatch, rng, name, tokens, heads, cols):
    arrays = drawn(rng, tokens, heads, cols)
    build = lambda ctx: [CHAINS[name](*map(ctx.from_numpy, arrays))]  # noqa: E731
    names, (got,) = ran(any_gpu, monkeypatch, RULES, build)
    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    assert names == ["norm_chain"]
    assert nmse(got, want) <= 1e-11


def test_rows_and_operands_of_two_bytes(any_gpu, monkeypatch, rng):
    x, w, _, r, *_ = drawn(rng, 3, 2, 64)

    def build(ctx):
        rows, weight, other = (ctx.from_numpy(a, F16) for a in (x, w, r))
        return [rows.rms_norm(weight, **EPS).mul(other)]

    names, (got,) = ran(any_gpu, monkeypatch, RULES, build)
    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    assert names == ["norm_chain"]
    assert nmse(got, want) <= 1e-11


NEAR_MISSES = {
    "rows of odd length": lambda x, r: x.slice(2, 0, 7).rms_norm(**EPS).mul(r.slice(2, 0, 7)),
    "a norm that others read": lambda x, r: (lambda y: y.mul(r).concat(y, axis=0))(
        x.rms_norm(**EPS)
    ),
    "a row for all": lambda x, r: x.slice(0, 0, 1).rms_norm(**EPS).mul(r),
    "turned": lambda x, r: x.rms_norm(**EPS).transpose(0, 2, 1).mul(r.transpose(0, 2, 1)),
    "two epsilons": lambda x, r: x.rms_norm(**EPS).add(r.rms_norm(eps=1.0)),
    "a part": lambda x, r: x.rms_norm(**EPS).slice(0, 1, 2).mul(r.slice(0, 0, 1)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_nearly_such_a_chain_stays_right(monkeypatch, rng, name):
    x, r = rng.standard_normal((2, 3, 8, 8)).astype("f4")
    build = lambda ctx: [NEAR_MISSES[name](ctx.from_numpy(x), ctx.from_numpy(r))]  # noqa: E731
    names, (got,) = ran(NumpyExecutor(), monkeypatch, RULES, build)
    _, (want,) = ran(NumpyExecutor(), monkeypatch, [], build)
    assert "norm_chain" not in names
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_op_refuses_other_rows(executor):
    with Context(executor) as ctx, pytest.raises(ShapeError, match="needs whole vectors of four"):
        norm_chain(ctx.zeros(3, 7), (Step("neg", (0,)),), norm="rms_norm", eps=1e-5)
