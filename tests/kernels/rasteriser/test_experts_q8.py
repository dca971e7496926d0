"""Products by the chosen expert with activations in eight bits, alone and by tiles."""

import numpy as np
import pytest

from tests.blocks import sampled
from tests.ops.fused import titled
from tests.ops.operands import tensor, weight_bytes
from tests.ops.test_expert_tiles import CHOICES
from tests.ops.test_experts import experts_of
from tests.ops.test_mixture import HIDDEN, Mixture
from tests.ops.test_mixture import ran as ran_layer
from wgpu_backend.dtypes import F16, I32, MXFP4, Q4_0, Q4_K, Q5_1, Q6_K, Q8_0, U32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.linear.attributes import Q8
from wgpu_backend.ops.linear.q8 import FORMATS, q8_activations
from wgpu_backend.ops.moe.expert_tiles import expert_tiles
from wgpu_backend.ops.moe.experts import linear_by_expert
from wgpu_backend.ops.op import fusions

LIMIT = 1e-10  # of the same rounded values; f32 sums in another order


def product(
    executor,
    check,
    rng,
    dtype,
    *,
    size=0,
    count=5,
    m=33,
    k=256,
    tokens=3,
    used=2,
    own=1,
    adds=False,
):
    bias = rng.standard_normal((count, m), "f4")
    data = weight_bytes(rng, count * m, k, dtype, k**-0.5)
    x = rng.standard_normal((tokens, own, k), "f4")
    ids = rng.integers(0, count, (tokens, used))

    def chosen(ctx):
        weights, rows = experts_of(ctx, count, m, k, dtype, data), q8_activations(tensor(ctx, x))
        added = tensor(ctx, bias) if adds else None
        if not size:
            return linear_by_expert(weights, rows, ctx.from_numpy(ids), added, prologue=Q8)
        tiles = expert_tiles(ctx.from_numpy(ids), experts=count, size=size)
        return linear_by_expert(weights, rows, tiles, added, used=used, prologue=Q8)

    check(executor, chosen, limit=LIMIT)


@pytest.mark.parametrize("dtype", sampled(FORMATS, "baseline"), ids=str)
@pytest.mark.parametrize(("size", "tokens"), [(0, 9), (4, 33)])
def test_experts_of_every_format_with_an_integer_form(gpu, check, rng, dtype, size, tokens):
    product(gpu, check, rng, dtype, size=size, tokens=tokens)


@pytest.mark.parametrize("size", [0, 2, 4])
@pytest.mark.parametrize(("tokens", "used", "own"), [(1, 1, 1), (1, 8, 8), (7, 3, 1), (257, 2, 2)])
@pytest.mark.parametrize("m", [1, 70])
def test_one_row_a_token_or_one_an_expert(gpu, check, rng, size, tokens, used, own, m):
    how = {"tokens": tokens, "used": used, "own": own}
    product(gpu, check, rng, Q8_0, k=96, m=m, size=size, **how)


@pytest.mark.parametrize("dtype", [Q4_0, Q6_K, MXFP4], ids=str)
@pytest.mark.parametrize("size", [0, 4])
def test_the_bias_of_the_expert(gpu, check, rng, dtype, size):
    product(gpu, check, rng, dtype, size=size, tokens=9, adds=True)


@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("dtype", [Q4_0, Q8_0, Q4_K, Q6_K], ids=str)
def test_a_part_may_end_inside_an_expert(executors, check, rng, dtype, size):
    split = executors("split")
    product(split, check, rng, dtype, size=size, count=6, m=161, k=512, tokens=19, used=3)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("dtype", [MXFP4, Q5_1], ids=str)
def test_products_are_rounded_where_that_is_allowed(rasteriser, monkeypatch, rng, choice, dtype):
    data, x = weight_bytes(rng, 4 * 9, 64, dtype, 1 / 8), rng.standard_normal((20, 1, 64), "f4")
    ids = CHOICES[choice](rng, (20, 3), 4).astype("i4")
    inside = (ids >= 0) & (ids < 4)

    def made(rules, wanted):
        monkeypatch.setattr(rasteriser, "rules", fusions(rules, exact=False))
        with Context(rasteriser) as ctx:
            weights = experts_of(ctx, 4, 9, 64, dtype, data)
            recorded = ctx.record(weights.mulmat_id(tensor(ctx, x), ctx.from_numpy(ids)))
            assert [titled(node) for node, _ in recorded.plan.steps] == wanted
            values = recorded.run({}).wait()[0][inside]
            recorded.close()
            return values.astype(np.float64)

    exact = made((), ["linear_by_expert"])
    alone = made(["linear_by_expert_q8"], ["q8_activations", "linear_by_expert q8"])
    both = ["linear_by_expert_tiles", "linear_by_expert_q8"]
    tiled = made(both, ["q8_activations", "expert_tiles", "linear_by_expert q8 tiles"])
    assert np.sum((alone - exact) ** 2) <= 1e-3 * np.sum(exact**2)
    np.testing.assert_allclose(tiled, alone, rtol=1e-5, atol=1e-6)


def test_experts_without_an_integer_form_stay_exact(full, monkeypatch, rng):
    monkeypatch.setattr(full, "rules", fusions(exact=False))
    data = weight_bytes(rng, 4 * 9, 64, F16)
    with Context(full) as ctx:
        weights = experts_of(ctx, 4, 9, 64, F16, data)
        ids = ctx.from_numpy(rng.integers(0, 4, (2, 1)))
        recorded = ctx.record(weights.mulmat_id(ctx.zeros(2, 1, 64), ids))
        assert [titled(node) for node, _ in recorded.plan.steps] == ["linear_by_expert"]
        recorded.close()


def test_what_does_not_fit_is_refused(full, rng):
    data = weight_bytes(rng, 4 * 9, 64, Q8_0)
    with Context(full) as ctx:
        weights, ids = experts_of(ctx, 4, 9, 64, Q8_0, data), ctx.zeros(3, 2, dtype=I32)
        with pytest.raises(ShapeError, match="rows of x have 96 values, rows of weights have 64"):
            linear_by_expert(weights, ctx.zeros(3, 1, 3, 12, dtype=U32), ids, prologue=Q8)
        with pytest.raises(ShapeError, match="groups of x have 8 words, needs 12"):
            linear_by_expert(weights, ctx.zeros(3, 1, 2, 8, dtype=U32), ids, prologue=Q8)
        with pytest.raises(DTypeError, match="linear_by_expert: weights is f32"):
            linear_by_expert(
                ctx.zeros(4, 9, 64), ctx.zeros(3, 1, 2, 12, dtype=U32), ids, prologue=Q8
            )


@pytest.mark.parametrize(
    ("recipe", "activation", "mix"),
    [("qwen3moe", "swiglu", ["expert_sum"]), ("gpt_oss", "silu_alpha_limit", ["mul", "chain"])],
)
def test_what_a_step_of_a_layer_consists_of(rasteriser, monkeypatch, rng, recipe, activation, mix):
    model = getattr(Mixture(rng, Q8_0), recipe)
    x = np.ones((1, HIDDEN), "f4")
    names, _ = ran_layer(rasteriser, monkeypatch, True, False, model, x)
    product = "linear_by_expert q8" + (" add" if recipe == "gpt_oss" else "")
    gate_and_up = ["q8_activations", *2 * [product], activation]
    assert names == ["linear", "route", *gate_and_up, "q8_activations", product, *mix]
