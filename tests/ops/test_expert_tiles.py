"""Pairs of a token and its expert listed by experts, and products of what is listed together."""

import numpy as np
import pytest

from tests.blocks import sampled
from tests.ops.fused import titled
from tests.ops.operands import LAYOUTS, VIEWS, WEIGHTS, tensor, weight_bytes
from tests.ops.test_experts import experts_of
from tests.shares import rare_on
from wgpu_backend.dtypes import BF16, F16, F32, I32, Q4_0, Q4_K, Q8_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.moe.expert_tiles import expert_tiles
from wgpu_backend.ops.moe.experts import count_tiles, linear_by_expert
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse

CHOICES = {
    "spread": lambda rng, shape, experts: rng.integers(0, experts, shape),
    "one": lambda rng, shape, experts: np.full(shape, experts - 1),
    "few": lambda rng, shape, experts: rng.integers(0, 2, shape) * (experts // 2),
    "outside": lambda rng, shape, experts: rng.integers(-2, experts + 2, shape),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("tokens", "used", "experts", "size"),
    [(1, 1, 1, 1), (3, 2, 5, 4), (33, 8, 128, 8), (257, 4, 32, 32), (5, 3, 512, 2)],
)
def test_every_pair_is_in_a_tile_of_its_expert(any_gpu, rng, choice, tokens, used, experts, size):
    ids = CHOICES[choice](rng, (tokens, used), experts).astype("i4")
    with Context(any_gpu) as context:
        got = expert_tiles(context.from_numpy(ids), experts=experts, size=size).numpy()
    pairs = np.flatnonzero((ids >= 0) & (ids < experts))
    listed = got[got[:, 0] >= 0]
    assert sorted(listed[:, 1:][listed[:, 1:] >= 0].tolist()) == pairs.tolist()
    for expert, *row in listed:
        some = [pair for pair in row if pair >= 0]
        assert len(some) > 0
        assert row == some + [-1] * (size - len(some))
        assert set(ids.reshape(-1)[some]) == {expert}


def test_no_tokens_have_no_tiles(any_gpu):
    with Context(any_gpu) as context:
        got = expert_tiles(context.zeros(0, 2, dtype=I32), experts=3, size=4).numpy()
    assert got[:, 0].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_reference_lists_the_same(gpu, check, rng, layout):
    ids = rng.integers(-1, 8, (19, 3))

    def experts(context):
        tiles = expert_tiles(LAYOUTS[layout](context, ids, I32), experts=7, size=4)
        return tiles.slice(1, 0, 1).contiguous()  # pairs of no expert are left open

    check(gpu, experts, limit=0)


def product(executor, monkeypatch, rng, dtype, *, count=5, m=33, k=256, **how):
    """NMSE of a product by tiles against that of one pair after the other."""
    tokens, used, choice = how.get("tokens", 50), how.get("used", 2), how.get("choice", "spread")
    data = weight_bytes(rng, count * m, k, dtype, k**-0.5)
    x = rng.standard_normal((tokens, used if how.get("own_rows") else 1, k), "f4")
    ids = CHOICES[choice](rng, (tokens, used), count).astype("i4")
    inside = (ids >= 0) & (ids < count)
    layout = how.get("layout", tensor)

    def made(rules):
        monkeypatch.setattr(executor, "rules", fusions(rules, exact=True))
        with Context(executor) as context:
            weights = experts_of(context, count, m, k, dtype, data)
            rows = layout(context, x, how.get("x_dtype", F32))
            y = weights.mulmat_id(rows, LAYOUTS["tensor"](context, ids, I32))
            recorded = context.record(y)
            names = [titled(node) for node, _ in recorded.plan.steps]
            values = recorded.run({}).wait()[0]
            recorded.close()
            return names, values

    names, got = made(["linear_by_expert_tiles"])
    assert "linear_by_expert tiles" in names
    return nmse(got[inside], made(())[1][inside])


# f32 sums in another order.
LIMIT = 1e-10


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("tokens", [33, 257])
def test_what_chose_the_same_expert_is_multiplied_together(
    any_gpu, monkeypatch, rng, choice, tokens
):
    assert product(any_gpu, monkeypatch, rng, Q8_0, tokens=tokens, choice=choice, k=64) <= LIMIT


@pytest.mark.parametrize("dtype", sampled(WEIGHTS, "baseline"), ids=str)
@rare_on("wide")
def test_experts_of_every_format(any_gpu, monkeypatch, rng, dtype):
    assert product(any_gpu, monkeypatch, rng, dtype, m=70) <= LIMIT


@pytest.mark.parametrize("dtype", [F32, Q4_0], ids=str)
def test_experts_of_one_row(any_gpu, monkeypatch, rng, dtype):
    assert product(any_gpu, monkeypatch, rng, dtype, m=1) <= LIMIT


@pytest.mark.parametrize(("layout", "dtype"), VIEWS, ids=str)
def test_rows_may_be_views_of_other_types(gpu, monkeypatch, rng, dtype, layout):
    how = {"x_dtype": dtype, "layout": LAYOUTS[layout], "own_rows": True}
    assert product(gpu, monkeypatch, rng, Q4_0, k=64, used=3, **how) <= LIMIT


@pytest.mark.parametrize("dtype", [F32, BF16, Q4_0, Q8_0, Q4_K], ids=str)
def test_a_part_may_end_inside_an_expert(split, monkeypatch, rng, dtype):
    assert product(split, monkeypatch, rng, dtype, count=6, m=101, used=3) <= LIMIT


def test_some_of_the_experts(any_gpu, check, rng):
    data = weight_bytes(rng, 6 * 9, 64, Q8_0, 1 / 8)
    x, ids = rng.standard_normal((40, 1, 64), "f4"), rng.integers(0, 3, (40, 2))
    size = any_gpu.capabilities.expert_tiles[0][0]

    def chosen(context):
        some = experts_of(context, 6, 9, 64, Q8_0, data).slice(0, 2, 5)
        tiles = expert_tiles(context.from_numpy(ids), experts=3, size=size)
        return linear_by_expert(some, tensor(context, x), tiles, used=2)

    check(any_gpu, chosen, limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("full", BF16),
        ("baseline", F32),
        ("baseline", F16),
        ("baseline", BF16),
        ("wide", F16),
        ("split", F16),
        ("split wide", F32),
    ],
    ids=str,
)
def test_products_may_end_with_the_bias_of_their_expert(executors, check, rng, kind, dtype):
    executor = executors(kind)
    data, bias = weight_bytes(rng, 3 * 101, 256, Q8_0, 1 / 16), rng.standard_normal((3, 101), "f4")
    x, ids = rng.standard_normal((40, 1, 256), "f4"), rng.integers(0, 3, (40, 2))
    size = executor.capabilities.expert_tiles[0][0]

    def chosen(context):
        weights = experts_of(context, 3, 101, 256, Q8_0, data)
        tiles = expert_tiles(context.from_numpy(ids), experts=3, size=size)
        added = tensor(context, bias, dtype)
        return linear_by_expert(weights, tensor(context, x), tiles, added, used=2)

    check(executor, chosen, limit=LIMIT)


@pytest.mark.parametrize("tokens", [1, 40])
def test_the_bias_of_another_choice_is_added_afterwards(full, monkeypatch, rng, tokens):
    rules = fusions(["linear_by_expert_tiles", "linear_by_expert_add"], exact=True)
    monkeypatch.setattr(full, "rules", rules)
    with Context(full) as context:
        ids, others = (context.from_numpy(rng.integers(0, 3, (tokens, 2))) for _ in range(2))
        weights, x = context.zeros(3, 9, 64), context.zeros(tokens, 1, 64)
        y = weights.mulmat_id(x, ids).add_id(context.zeros(3, 9), others)
        recorded = context.record(y)
        names = [titled(node) for node, _ in recorded.plan.steps]
        recorded.close()
    assert names[-1] == "add_id"


def test_products_of_the_same_choice_share_its_tiles(full, monkeypatch, rng):
    monkeypatch.setattr(full, "rules", fusions(["linear_by_expert_tiles"], exact=True))
    w, x = rng.standard_normal((3, 9, 64), "f4"), rng.standard_normal((40, 1, 64), "f4")
    with Context(full) as context:
        ids = context.from_numpy(rng.integers(0, 3, (40, 2)))
        gate, up = (context.from_numpy(w).mulmat_id(context.from_numpy(x), ids) for _ in range(2))
        recorded = context.record(gate, up)
        names = [titled(node) for node, _ in recorded.plan.steps]
        recorded.close()
    assert names == ["expert_tiles", *2 * ["linear_by_expert tiles"]]


def test_few_tokens_and_odd_rows_stay_apart(full, monkeypatch, rng):
    monkeypatch.setattr(full, "rules", fusions(["linear_by_expert_tiles"], exact=True))
    for tokens, k in ((1, 64), (90, 33)):
        with Context(full) as context:
            ids = context.from_numpy(rng.integers(0, 3, (tokens, 2)))
            x = context.from_numpy(rng.standard_normal((tokens, 1, k), "f4"))
            weights = context.from_numpy(rng.standard_normal((3, 9, k), "f4"))
            recorded = context.record(weights.mulmat_id(x, ids))
            names = [titled(node) for node, _ in recorded.plan.steps]
            recorded.close()
        assert names == ["linear_by_expert"]


@pytest.mark.parametrize("shape", [(0, 9, 64), (3, 0, 64)], ids=["no experts", "no rows"])
def test_of_nothing_comes_nothing(full, monkeypatch, rng, shape):
    monkeypatch.setattr(full, "rules", fusions(["linear_by_expert_tiles"], exact=True))
    with Context(full) as context:
        x = context.from_numpy(rng.standard_normal((40, 1, 64), "f4"))
        ids = context.from_numpy(rng.integers(0, 3, (40, 2)))
        weights = context.from_numpy(np.zeros(shape, "f4"))
        assert weights.mulmat_id(x, ids).numpy().shape == (40, 2, shape[1])


def test_what_does_not_fit_is_refused(full):
    with Context(full) as context:
        weights, x = context.zeros(4, 9, 64), context.zeros(3, 1, 64)
        with pytest.raises(ShapeError, match="tiles of 0 for 4 experts"):
            expert_tiles(context.zeros(3, 2, dtype=I32), experts=4, size=0)
        with pytest.raises(ShapeError, match=r"tiles is \(4, 5\), 6 pairs of 4 experts need"):
            linear_by_expert(weights, x, context.zeros(4, 5, dtype=I32), used=2)
        with pytest.raises(DTypeError, match="linear_by_expert: tiles is f32, needs i32"):
            linear_by_expert(weights, x, context.zeros(count_tiles(6, 4, 4), 5), used=2)
        tiles = context.zeros(count_tiles(6, 4, 4), 5, dtype=I32)
        with pytest.raises(ShapeError, match="rows of weights have 33 values"):
            linear_by_expert(context.zeros(4, 9, 33), context.zeros(3, 1, 33), tiles, used=2)
