"""Products where no family has a kernel: those that any WebGPU device runs."""

import numpy as np
import pytest

from tests.blocks import sampled
from tests.ops.fused import ran
from tests.ops.operands import WEIGHTS, tensor, weight, weight_bytes
from tests.ops.test_experts import experts_of
from wgpu_backend.dtypes import F16, F32, IQ3_S, Q4_0, Q8_0
from wgpu_backend.errors import DeviceError
from wgpu_backend.kernels import table
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.linear.attributes import Q8, Epilogue, Prologue
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.moe.experts import linear_by_expert
from wgpu_backend.ops.rounding.normed import norm_weighted
from wgpu_backend.ops.rounding.q8 import q8_activations
from wgpu_backend.testing import nmse

pytestmark = pytest.mark.any_width
LIMIT, LIMIT_OF_ONE = 1e-10, 1e-8  # as in test_matmul


@pytest.fixture
def portable(executors, monkeypatch):
    """A device that no family knows; it has neither subgroups nor f16."""
    monkeypatch.setattr(table, "_BY_OP", {})
    return executors("baseline")


@pytest.mark.parametrize("n", [1, 3, 33])
@pytest.mark.parametrize("m", [1, 33, 257])
@pytest.mark.parametrize("dtype", sampled(WEIGHTS, "baseline"), ids=str)
def test_every_format_times_few_and_many_columns(portable, check, rng, dtype, m, n):
    data, x = weight_bytes(rng, m, 256, dtype, 1 / 16), rng.standard_normal((n, 256), "f4")

    def multiplied(ctx):
        return weight(ctx._executor, m, 256, dtype, data).mulmat(tensor(ctx, x))

    check(portable, multiplied, limit=LIMIT if m * n > 1 else LIMIT_OF_ONE)


@pytest.mark.parametrize("k", [32, 96, 2080, 4128])
@pytest.mark.parametrize("n", [1, 5])
def test_rows_of_any_number_of_groups(portable, check, rng, n, k):
    data, x = weight_bytes(rng, 7, k, Q4_0, k**-0.5), rng.standard_normal((n, k), "f4")

    def multiplied(ctx):
        return weight(ctx._executor, 7, k, Q4_0, data).mulmat(tensor(ctx, x))

    check(portable, multiplied, limit=LIMIT)


@pytest.mark.parametrize("n", [1, 7])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("residual", [None, False, True], ids=["none", "bias", "residual"])
@pytest.mark.parametrize("dtype", [F32, F16, Q8_0, IQ3_S], ids=str)
def test_every_epilogue_of_sums(portable, check, rng, dtype, residual, gated, n):
    data, x = weight_bytes(rng, 66, 256, dtype, 1 / 16), rng.standard_normal((n, 256), "f4")
    m = 33 if gated else 66
    addend = rng.standard_normal((n, m) if residual else m, "f4")

    def product(ctx):
        terms = [] if residual is None else [tensor(ctx, addend)]
        matrix = weight(ctx._executor, 66, 256, dtype, data)
        epilogue = Epilogue("gelu" if gated else None)
        return linear(matrix, tensor(ctx, x), *terms, epilogue=epilogue)

    check(portable, product, limit=LIMIT_OF_ONE)


@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize("bias", [False, True])
def test_products_by_the_chosen_expert(portable, check, rng, bias, tokens, m):
    data = weight_bytes(rng, 4 * m, 96, Q8_0)
    x, biases = rng.standard_normal((tokens, 1, 96), "f4"), rng.standard_normal((4, m), "f4")
    ids = rng.integers(0, 4, (tokens, 3))

    def product(ctx):
        weights = experts_of(ctx, 4, m, 96, Q8_0, data)
        terms = [tensor(ctx, biases)] if bias else []
        return linear_by_expert(weights, tensor(ctx, x), ctx.from_numpy(ids), *terms)

    check(portable, product, limit=LIMIT_OF_ONE)


def test_what_it_does_not_do_is_refused(portable, rng):
    with Context(portable) as ctx:
        matrix = ctx.from_bytes(Q4_0, weight_bytes(rng, 32, 64, Q4_0), 32, 64)
        x = ctx.zeros(2, 64)
        for product in (
            linear(matrix, q8_activations(x), prologue=Q8),
            linear(matrix, norm_weighted(x, ctx.zeros(64)), prologue=Prologue(eps=1e-5)),
            linear(matrix, x, epilogue=Epilogue(form="q8")),
            linear(matrix, x, None, ctx.zeros(32), ctx.zeros(2, 32), epilogue=Epilogue(norm=True)),
        ):
            with pytest.raises(
                DeviceError, match=r"linear: .* no kernel for weights of \(32, 64\)"
            ):
                product.numpy()


@pytest.mark.parametrize("n", [1, 5])
def test_rules_make_no_product_that_no_kernel_runs(portable, monkeypatch, rng, n):
    """A norm, a gated product and a residual: of all rules those that gate and add are left."""
    data = weight_bytes(rng, 128, 64, Q4_0, 1 / 8), weight_bytes(rng, 64, 64, Q4_0, 1 / 8)
    x = rng.standard_normal((n, 64), "f4")

    def layer(ctx):
        both, down = (weight(ctx._executor, len(d) // 36, 64, Q4_0, d) for d in data)
        residual = tensor(ctx, x)
        normed = residual.rms_norm(tensor(ctx, np.ones(64, "f4")), eps=1e-5)
        joined = both[:64].mulmat(normed).swiglu(both[64:].mulmat(normed))
        return [down.mulmat(joined) + residual]

    names, got = ran(portable, monkeypatch, True, layer, exact=False)
    assert names == ["rms_norm", "linear gated", "linear add"]
    _, want = ran(portable, monkeypatch, [], layer)
    assert nmse(got[0], want[0]) <= LIMIT
