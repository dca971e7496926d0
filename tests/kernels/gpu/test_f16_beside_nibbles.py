"""Weights of six bits that share rows with those of four: V beside Q and K of a mix."""

import dataclasses

import pytest

from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.dtypes import Q4_K, Q6_K
from wgpu_backend.kernels.gpu.rows import f16_activations
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ops.linear.attributes import Prologue
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

OF_F16 = 1e-5  # eleven bits, and sums of 32 in as many: some 1e-6
RULES = ("linear_f16_groups",)


@pytest.fixture
def wide(executors):
    wide = executors("wide")
    if not wide.capabilities.f16:
        pytest.skip("needs arithmetic in f16")
    return wide.as_if(dataclasses.replace(wide.capabilities, integer_dot=False))


@pytest.mark.parametrize("n", [1, 3])
def test_rows_for_nibbles_become_what_they_stand_for(wide, check, rng, n):
    data, x = weight_bytes(rng, 35, 512, Q6_K, 1 / 16), rng.standard_normal((n, 512), "f4")
    x[0, 32:64] *= 1e4

    def product(ctx):
        rows = f16_activations(tensor(ctx, x), planar=True, nibbles=True)
        w = weight(ctx._executor, 35, 512, Q6_K, data)
        return linear(w, rows, prologue=Prologue("f16_nibbles"))

    check(wide, product, limit=OF_F16)


@pytest.mark.parametrize("first", [Q4_K, Q6_K], ids=str)
def test_one_rounding_serves_both_formats(wide, rng, monkeypatch, first):
    """Of the form that the first wants, which is that for nibbles where it has some."""
    monkeypatch.setattr(wide, "rules", fusions(RULES, exact=False))
    data = [weight_bytes(rng, 36, 256, dtype, 1 / 16) for dtype in (first, Q6_K)]
    x = rng.standard_normal((2, 256), "f4")

    def build(ctx):
        columns = tensor(ctx, x)
        pairs = zip((first, Q6_K), data, strict=True)
        ys = [weight(ctx._executor, 36, 256, dtype, d).mulmat(columns) for dtype, d in pairs]
        return ys[0].concat(ys[1], axis=1)

    with Context(DryRunExecutor(wide, lambda shader: None)) as ctx:
        steps = ctx.record(build(ctx)).plan.steps
        found = [node.call.kwargs for node, _ in steps if node.call.op.name == "f16_activations"]
    assert found == [{"planar": True, "nibbles": first == Q4_K}]
    got = values_of(wide, build)
    monkeypatch.setattr(wide, "rules", {})
    assert 0 < nmse(got, values_of(wide, build)) < OF_F16
