"""A model's prompt of so many tokens that their activations are rounded once for all products."""

import dataclasses

import numpy as np
import pytest

from tests.builders import Dims, tiny_model
from tests.models.running import running
from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.dtypes import Q4_0
from wgpu_backend.kernels.gpu.product_rules import LEAST_COLUMNS
from wgpu_backend.kernels.gpu.rows import f16_weighted
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.attributes import Prologue
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse

ONCE = "linear_f16_once"
TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 256, LEAST_COLUMNS + 5)]
OF_F16 = 5e-6  # of one product; logits of two layers have 1.1e-6


def logits(path, executor):
    with running(path, executor, 256) as model:
        return model.anew(TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("integer_dot", [True, False])
def test_logits_are_nearly_as_good_as_of_products_that_round_for_themselves(
    executors, tmp_path, monkeypatch, integer_dot
):
    path = tiny_model(tmp_path / "m.gguf", dtype="q4_0", dims=Dims(context=256))
    wide = executors("wide")
    device = wide.as_if(dataclasses.replace(wide.capabilities, integer_dot=integer_dot))
    monkeypatch.setattr(device, "rules", fusions(exact=False, coarse=False))
    got = logits(path, device)
    monkeypatch.setattr(device, "rules", fusions(exact=False, coarse=False, without=[ONCE]))
    apart = logits(path, device)
    exact = logits(path, NumpyExecutor())
    assert 0 < nmse(got, apart) < OF_F16
    # Sums in f16 are of 32 products, those of products that round for themselves of 16.
    assert nmse(got, exact) < 2 * nmse(apart, exact) < OF_F16


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["default", "f16"])
def test_a_norm_that_is_left_to_many_columns_is_made(executors, check, rng, precision):
    """By kernels that have none of it, or that a portable one stands in for."""
    data, scale = weight_bytes(rng, 33, 64, Q4_0, 1 / 8), rng.standard_normal(64, "f4")
    x = 5 * rng.standard_normal((20, 64), "f4")

    def product(ctx):
        rows = f16_weighted(tensor(ctx, x), tensor(ctx, scale), planar=True)
        matrix = weight(ctx._executor, 33, 64, Q4_0, data)
        return linear(matrix, rows, prologue=Prologue("f16", eps=1e-5), precision=precision)

    check(executors("wide"), product, limit=OF_F16)
