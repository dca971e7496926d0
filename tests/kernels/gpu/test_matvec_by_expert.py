"""Products of few tokens by the chosen expert on hardware: pairs, and sums of a token's."""

import dataclasses

import numpy as np
import pytest

from tests.ops.operands import weight_bytes
from tests.ops.test_experts import experts_of
from wgpu_backend.dtypes import BF16, F16, F32, IQ2_S, IQ4_NL, Q4_0, Q4_K, Q6_K, Q8_0
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.kernels import complete
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ops.moe.expert_sum import linear_by_expert_sum
from wgpu_backend.ops.moe.expert_tiles import expert_tiles
from wgpu_backend.ops.moe.experts import linear_by_expert
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

LIMIT = 1e-10  # sums in another order
# Floats, integers with one scale and with two, numbers of a table, and what is only decoded.
FORMATS = [F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K, IQ4_NL, IQ2_S]
COUNT = 4


@pytest.fixture(params=[True, False], ids=["subgroups", "workgroup"])
def hardware(request, executors):
    wide = executors("wide")
    subgroups = wide.capabilities.subgroups and request.param
    return wide.as_if(dataclasses.replace(wide.capabilities, subgroups=subgroups))


def drawn(rng, tokens, used, x_used, k):
    x = rng.standard_normal((tokens, x_used, k), "f4")
    return x, rng.integers(0, COUNT, (tokens, used)).astype("i4")


def labels(executor, build):
    with Context(executor) as ctx:
        recorded = ctx.record(build(ctx))
        found = {op: label for op, label, _ in recorded.timed()}
        recorded.close()
    return found


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("m", "tokens", "x_used"), [(33, 3, 1), (5, 1, 2)])
def test_pairs_meet_their_experts(hardware, check, rng, dtype, m, tokens, x_used):
    data = weight_bytes(rng, COUNT * m, 256, dtype, 1 / 16)
    x, ids = drawn(rng, tokens, 2, x_used, 256)

    def build(ctx):
        weights = experts_of(ctx, COUNT, m, 256, dtype, data)
        return linear_by_expert(weights, ctx.from_numpy(x), ctx.from_numpy(ids))

    check(hardware, build, limit=LIMIT)
    assert "gpu/matvec_by_expert" in labels(hardware, build)["linear_by_expert"]


@pytest.mark.parametrize("dtype", [Q4_K, F16], ids=str)
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("m", [1, 33])
def test_gates_are_joined(hardware, check, rng, dtype, apart, m):
    data = weight_bytes(rng, 2 * COUNT * m, 256, dtype, 1 / 16)
    x, ids = drawn(rng, 3, 2, 1, 256)

    def build(ctx):
        shape = (2, COUNT, m, 256) if apart else (COUNT, 2 * m, 256)
        weights = experts_of(ctx, 2 * COUNT, m, 256, dtype, data).reshape(*shape)
        return linear_by_expert(weights, ctx.from_numpy(x), ctx.from_numpy(ids), activation="silu")

    check(hardware, build, limit=LIMIT)


def test_a_bias_of_the_expert(hardware, check, rng):
    data = weight_bytes(rng, COUNT * 9, 64, Q8_0, 1 / 8)
    x, ids = drawn(rng, 5, 2, 1, 64)
    bias = rng.standard_normal((COUNT, 9), "f4")

    def build(ctx):
        weights = experts_of(ctx, COUNT, 9, 64, Q8_0, data)
        given = map(ctx.from_numpy, (x, ids, bias))
        return linear_by_expert(weights, *given)

    check(hardware, build, limit=LIMIT)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("m", "tokens", "adds"), [(33, 3, True), (5, 1, False)])
def test_products_of_a_token_are_summed(hardware, check, rng, dtype, m, tokens, adds):
    adds = adds and dtype not in (Q6_K, IQ2_S)  # which leave no binding
    data = weight_bytes(rng, COUNT * m, 256, dtype, 1 / 16)
    x, ids = drawn(rng, tokens, 3, 3, 256)
    shares, rest = rng.standard_normal((tokens, 3), "f4"), rng.standard_normal((tokens, m), "f4")

    def build(ctx):
        weights = experts_of(ctx, COUNT, m, 256, dtype, data)
        given = map(ctx.from_numpy, (x, ids, shares))
        addend = ctx.from_numpy(rest) if adds else None
        return linear_by_expert_sum(weights, *given, addend, factor=0.5)

    check(hardware, build, limit=LIMIT)
    assert "gpu/matvec_by_expert_sum" in labels(hardware, build)["linear_by_expert_sum"]


def test_experts_outside_count_for_nothing(hardware, rng):
    data = weight_bytes(rng, COUNT * 9, 64, Q4_0, 1 / 8)
    x, _ = drawn(rng, 2, 2, 2, 64)
    ids, shares = np.array([[0, COUNT], [-1, 1]], "i4"), np.ones((2, 2), "f4")
    with Context(hardware) as ctx:
        weights = experts_of(ctx, COUNT, 9, 64, Q4_0, data)
        given = [ctx.from_numpy(each) for each in (x, ids, shares)]
        each = linear_by_expert(weights, *given[:2]).numpy()[[0, 1], [0, 1]]
        got = linear_by_expert_sum(weights, *given).numpy()
    np.testing.assert_allclose(got, each, rtol=1e-5, atol=1e-6)
    assert np.abs(got).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "pairs"), [(Q4_0, 32), (Q4_K, 32), (F16, 32), (Q4_K, 64), (Q4_0, 128)], ids=str
)
def test_tiles_of_experts_in_pairs(executors, rng, dtype, pairs):
    """Rows of several tiles of an expert, columns of any magnitude, and a bias."""
    wide = executors("wide")
    if not wide.capabilities.f16:
        pytest.skip("needs arithmetic in f16")
    data = weight_bytes(rng, 3 * 70, 256, dtype, 1 / 16)
    x = rng.standard_normal((50, 1, 256), "f4")
    x[3] *= 1e6
    x[4] *= 1e-6
    ids, bias = rng.integers(0, 3, (50, 2)).astype("i4"), np.zeros((3, 70), "f4")

    def build(ctx):
        experts = experts_of(ctx, 3, 70, 256, dtype, data)
        tiles = expert_tiles(ctx.from_numpy(ids), experts=3, size=pairs)
        given = ctx.from_numpy(x), tiles, ctx.from_numpy(bias)
        return linear_by_expert(experts, *given, used=2, precision="f16")

    assert "tile=tile_f16" in labels(wide, build)["linear_by_expert"]
    got, wanted = values_of(wide, build), values_of(NumpyExecutor(), build)
    assert max(nmse(got[row], wanted[row]) for row in range(50)) < 4e-6
    assert 0 < nmse(np.delete(got, [3, 4], 0), np.delete(wanted, [3, 4], 0)) < 1e-6


def test_experts_are_in_pairs_where_rounding_is_allowed(executors, rng, monkeypatch):
    wide = executors("wide")
    if not wide.capabilities.f16:
        pytest.skip("needs arithmetic in f16")
    data = weight_bytes(rng, 3 * 33, 64, Q4_0, 1 / 8)
    x, ids = rng.standard_normal((200, 1, 64), "f4"), rng.integers(0, 3, (200, 2)).astype("i4")

    def kernels(rules):
        monkeypatch.setattr(wide, "rules", rules)
        composed = []
        with Context(DryRunExecutor(wide, composed.append)) as ctx:
            experts = experts_of(ctx, 3, 33, 64, Q4_0, data)
            ctx.record(experts.mulmat_id(ctx.from_numpy(x), ctx.from_numpy(ids))).close()
        return [s.label for s in composed if "matmul_tiled_by_expert" in s.label]

    (exact,), (rounded,) = kernels(fusions(exact=True)), kernels(fusions(exact=False, coarse=False))
    assert "tile=tile_f16" not in exact
    assert "tile=tile_f16" in rounded


def test_experts_with_rows_of_no_whole_groups_keep_their_kernel(rng):
    executor = NumpyExecutor(complete(Capabilities(subgroups=True, f16=True)))
    executor.rules = fusions(["linear_by_expert_f16"], exact=False)
    data = weight_bytes(rng, 3 * 33, 48, F16, 1 / 8)
    x, ids = rng.standard_normal((40, 1, 48), "f4"), rng.integers(0, 3, (40, 2)).astype("i4")
    results = []
    for each in (executor, NumpyExecutor()):
        with Context(each) as ctx:
            experts = experts_of(ctx, 3, 33, 48, F16, data)
            results.append(experts.mulmat_id(ctx.from_numpy(x), ctx.from_numpy(ids)).numpy())
    np.testing.assert_array_equal(*results)
