"""Routers as models write them run as one op, with the same experts and weights."""

import numpy as np
import pytest

from wgpu_backend.dtypes import F16, F32, I32
from wgpu_backend.engine.graph_facts import describe_pass
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.moe.route import route
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse

RECIPES = ["qwen3moe", "unnormalised", "gpt-oss", "deepseek", "scaled", "gemma4", "chosen alone"]


def routed(recipe, logits, k, bias):
    """Ids and weights of a router, in the ops of the models that are named so."""
    tokens, experts = logits.shape
    scores = logits
    if recipe in ("qwen3moe", "unnormalised", "scaled"):
        scores = logits.softmax()
    if recipe == "gemma4":
        scores = logits.scale(factor=0.25).softmax()
    if recipe == "deepseek":
        scores = logits.sigmoid()
    ids = (scores + bias if recipe == "deepseek" else scores).top_k(k)
    if recipe == "chosen alone":
        return ids, scores.take_along_axis(ids, 1)
    weights = scores.reshape(tokens, experts, 1).rows(ids)
    if recipe == "unnormalised":
        return ids, weights
    weights = weights.reshape(tokens, k)
    if recipe == "gpt-oss":
        return ids, weights.softmax()
    weights = weights / weights.sum_rows()
    if recipe == "scaled":
        return ids, weights.scale(factor=2.5)
    if recipe == "gemma4":
        return ids, weights.mul(bias.reshape(-1, 1).rows(ids.reshape(-1)).reshape(tokens, k))
    weights = weights.reshape(tokens, k, 1)
    return ids, weights if recipe == "qwen3moe" else weights.scale(factor=2.5)


def of_groups(groups, used):
    """A router as DeepSeek V3 has it."""

    def recipe(logits, k, bias):
        tokens, experts = logits.shape
        scores = logits.sigmoid()
        ids = (scores + bias).of_best_groups(groups=groups, used=used).top_k(k)
        weights = scores.reshape(tokens, experts, 1).rows(ids).reshape(tokens, k)
        return ids, (weights / weights.sum_rows()).scale(factor=2.5)

    return recipe


def ran(executor, monkeypatch, rules, logits, bias, k, recipe, dtype=F32):
    """Ops after fusion, and ids and weights as the experts' ops get them."""
    monkeypatch.setattr(executor, "rules", fusions(rules, exact=True))
    with Context(executor) as context:
        x = context.from_numpy(logits, dtype)
        bias = context.from_numpy(bias)
        ids, weights = recipe(x, k, bias) if callable(recipe) else routed(recipe, x, k, bias)
        recorded = context.record(ids, weights)
        try:
            names = [node.call.op.name for node, _ in recorded.plan.steps]
            return names, *recorded.run({}).wait()
        finally:
            recorded.close()


def assert_routed(executor, monkeypatch, logits, bias, k, recipe, dtype=F32):
    names, ids, weights = ran(executor, monkeypatch, ["route"], logits, bias, k, recipe, dtype)
    apart, wanted_ids, wanted = ran(executor, monkeypatch, (), logits, bias, k, recipe, dtype)
    assert [n for n in names if n != "contiguous"] == ["route"]
    assert "top_k_of_parts" in apart
    np.testing.assert_array_equal(ids, wanted_ids)
    # Exponentials and sums, in another order.
    assert nmse(weights, wanted) <= 1e-12


def drawn(rng, tokens, experts):
    logits = rng.standard_normal((tokens, experts)) * rng.choice([0.01, 1, 30])
    return logits.astype("f4"), rng.standard_normal(experts, "f4")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("tokens", "experts", "k"),
    [(1, 32, 4), (3, 8, 2), (33, 128, 8), (257, 5, 5), (4, 1, 1), (2, 512, 32)],
)
def test_a_router_is_one_op(any_gpu, monkeypatch, rng, recipe, tokens, experts, k):
    logits, bias = drawn(rng, tokens, experts)
    assert_routed(any_gpu, monkeypatch, logits, bias, k, recipe)


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "groups", "used"), [(33, 256, 8, 8, 4), (3, 15, 4, 5, 2)]
)
def test_a_router_of_groups_is_one_op(any_gpu, monkeypatch, rng, tokens, experts, k, groups, used):
    logits, bias = drawn(rng, tokens, experts)
    logits[0] = logits[1, ::2] = 0.0  # of equal groups the first is used
    bias[: experts // 2] = 0.0
    assert_routed(any_gpu, monkeypatch, logits, bias, k, of_groups(groups, used))


def test_groups_of_no_numbers_are_best(full, monkeypatch, rng):
    logits, bias = drawn(rng, 4, 16)
    logits[0, 5] = logits[1, 0] = np.nan
    logits[2, 8:] = -np.inf
    recipe = of_groups(4, 2)
    _, ids, weights = ran(full, monkeypatch, ["route"], logits, bias, 4, recipe)
    _, wanted_ids, wanted = ran(full, monkeypatch, (), logits, bias, 4, recipe)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(weights, wanted, rtol=1e-5)


@pytest.mark.parametrize(("groups", "used"), [(1, 1), (3, 2), (12, 5)])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_scores_of_the_best_groups_stay(executor, rng, groups, used, dtype):
    scores = rng.standard_normal((7, 12)).astype("f2").astype("f4")
    grouped = scores.reshape(7, groups, -1)
    sums = np.sort(grouped, axis=2)[..., -2:].sum(axis=2)
    wanted = np.full_like(grouped, -np.inf)
    for row, best in enumerate(np.argsort(-sums, axis=1, kind="stable")[:, :used]):
        wanted[row, best] = grouped[row, best]
    with Context(executor) as context:
        got = context.from_numpy(scores, dtype).of_best_groups(groups=groups, used=used).numpy()
    np.testing.assert_array_equal(got, wanted.reshape(7, 12))


@pytest.mark.parametrize(("groups", "used"), [(5, 1), (4, 5), (4, 0), (64, 1)])
def test_groups_that_do_not_fit_are_refused(executor, groups, used):
    with Context(executor) as context:
        scores = context.zeros(2, 64 if groups == 64 else 12)
        with pytest.raises(ShapeError, match=f"of_best_groups: {used} of {groups} groups of"):
            scores.of_best_groups(groups=groups, used=used)


def mixed(scores, ids, margin):
    """Weights of chosen experts as the paper has them: a softmax over what is not masked."""
    best = np.take_along_axis(scores, ids, 1)[..., None]
    others = scores[:, None]
    short = (best - others) / np.maximum(np.abs(others), best)
    kept = np.where((others > best) | (short > margin), -np.inf, others - best)
    return 1 / np.exp(kept).sum(-1)


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize(("tokens", "experts", "used"), [(1, 16, 2), (70, 5, 3), (3, 1, 1)])
def test_sparse_mixer_weighs_each_choice_alone(any_gpu, check, rng, dtype, tokens, experts, used):
    scores = rng.uniform(-1, 3, (tokens, experts)).astype(dtype.numpy)
    ids = np.argsort(-scores, 1)[:, :used].astype("i4")

    def weights(ctx):
        wide = np.repeat(np.concatenate([ids, ids], 1), 2, 0)
        chosen = ctx.from_numpy(wide)[::2].slice(1, used, 2 * used)
        return ctx.from_numpy(scores, dtype).sparse_mixer(chosen, margin=0.25)

    check(any_gpu, weights, limit=1e-11)
    with Context(any_gpu) as ctx:
        got = weights(ctx).numpy()
    assert nmse(got, mixed(scores.astype("f8"), ids, 0.25)) <= 1e-11


def test_sparse_mixer_refuses_other_tokens(executor):
    with (
        Context(executor) as context,
        pytest.raises(ShapeError, match="ids has 3 tokens, x has 2"),
    ):
        context.zeros(2, 4).sparse_mixer(context.zeros(3, 2, dtype=I32), margin=0.02)


@pytest.mark.parametrize("turn", range(8))
def test_routers_of_random_shapes(any_gpu, monkeypatch, rng, turn):
    tokens, experts = int(rng.integers(1, 70)), int(rng.integers(2, 512))
    logits, bias = drawn(rng, tokens, experts)
    k = int(rng.integers(1, min(experts, 32)))
    dtype = F16 if turn % 2 else F32
    recipe = RECIPES[int(rng.integers(len(RECIPES) - 1))] if dtype == F32 else "qwen3moe"
    assert_routed(any_gpu, monkeypatch, logits, bias, k, recipe, dtype)


@pytest.mark.parametrize("recipe", RECIPES)
def test_of_equal_scores_the_lower_expert_comes_first(any_gpu, monkeypatch, rng, recipe):
    logits = rng.integers(-1, 2, (9, 40)).astype("f4")
    logits[0] = 0.0
    logits[1, ::2] = -0.0
    logits[2, 3:] = -200.0  # whose softmax is zero
    assert_routed(any_gpu, monkeypatch, logits, np.zeros(40, "f4"), 8, recipe)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_no_number_goes_through(any_gpu, monkeypatch, rng, recipe):
    logits, bias = drawn(rng, 6, 16)
    logits[0, 5] = logits[1, 0] = logits[1, 7] = np.nan
    logits[2, 3], logits[3, 4] = np.inf, -np.inf
    logits[4, 5], logits[4, 6] = -np.nan, np.inf
    logits[5] = -np.inf
    _, ids, weights = ran(any_gpu, monkeypatch, ["route"], logits, bias, 4, recipe)
    _, wanted_ids, wanted = ran(any_gpu, monkeypatch, (), logits, bias, 4, recipe)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(weights, wanted, rtol=1e-5)


def test_ids_read_before_the_weights_stay(full, monkeypatch, rng):
    monkeypatch.setattr(full, "rules", fusions(["route"], exact=True))
    logits, _ = drawn(rng, 3, 16)
    with Context(full) as context:
        scores = context.from_numpy(logits).softmax()
        ids = scores.top_k(4)
        early = context.from_numpy(rng.standard_normal((16, 5), "f4")).rows(ids.reshape(-1))
        weights = scores.reshape(3, 16, 1).rows(ids)
        recorded = context.record(early, weights)
        assert "route" not in [node.call.op.name for node, _ in recorded.plan.steps]
        recorded.close()


ROUTERS_OF_OTHER_ROWS = {
    "tokens and experts transposed": lambda x, bias: (x.softmax(), lambda s: s.transpose() + bias),
    "softmax of groups of experts": lambda x, bias: (
        x.reshape(8, 2, 4).softmax().reshape(8, 8),
        lambda s: s,
    ),
    "sigmoid of groups of experts": lambda x, bias: (
        x.reshape(8, 2, 4).sigmoid().reshape(8, 8),
        lambda s: s + bias,
    ),
}


@pytest.mark.parametrize("kind", ROUTERS_OF_OTHER_ROWS)
def test_scores_of_other_rows_than_the_choice_stay_apart(full, monkeypatch, rng, kind):
    logits, bias = drawn(rng, 8, 8)

    def made(rules):
        monkeypatch.setattr(full, "rules", fusions(rules, exact=True))
        with Context(full) as context:
            x, added = context.from_numpy(logits), context.from_numpy(bias)
            scores, ranked = ROUTERS_OF_OTHER_ROWS[kind](x, added)
            ids = ranked(scores).top_k(2)
            recorded = context.record(ids, scores.reshape(8, 8, 1).rows(ids))
            names = [node.call.op.name for node, _ in recorded.plan.steps]
            values = recorded.run({}).wait()
            recorded.close()
            return names, values

    names, got = made(["route"])
    assert "route" not in names
    for found, wanted in zip(got, made(())[1], strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_more_tokens_than_one_axis_of_a_grid_has_groups(any_gpu, rng):
    logits = rng.permuted(np.tile(np.arange(4, dtype="f4"), (70_000, 1)), axis=1)
    with Context(any_gpu) as context:
        ids = context.zeros(70_000, 2, dtype=I32)
        weights = route(context.from_numpy(logits), ids).numpy()
        chosen = ids.numpy()
    np.testing.assert_array_equal(weights, np.tile([3, 2], (70_000, 1)))
    np.testing.assert_array_equal(np.take_along_axis(logits, chosen, 1), weights)


def test_scores_that_others_read_are_made_as_well(full, monkeypatch, rng):
    logits, _ = drawn(rng, 3, 16)

    def made(rules):
        monkeypatch.setattr(full, "rules", fusions(rules, exact=True))
        with Context(full) as context:
            scores = context.from_numpy(logits).softmax()
            weights = scores.reshape(3, 16, 1).rows(scores.top_k(4)).reshape(3, 4)
            recorded = context.record(scores, weights, weights / weights.sum_rows())
            names = [node.call.op.name for node, _ in recorded.plan.steps]
            values = recorded.run({}).wait()
            recorded.close()
            return names, values

    names, got = made(["route"])
    assert {"softmax", "route", "div"} <= set(names)
    for found, wanted in zip(got, made(())[1], strict=True):
        assert nmse(found, wanted) <= 1e-12


@pytest.mark.parametrize(("scores", "weights"), [("softmax", "sum"), ("", "softmax")])
def test_the_reference_gives_the_same(executor, rng, scores, weights):
    logits, bias = rng.standard_normal((5, 33), "f4"), rng.standard_normal(33, "f4")
    with Context(executor) as context:
        ids = context.zeros(5, 3, dtype=I32)
        x, added = context.from_numpy(logits), context.from_numpy(bias)
        got = route(x, ids, added, scores=scores, weights=weights, factor=0.5).numpy()
        chosen = ids.numpy()
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    given = p / p.sum(axis=1, keepdims=True) if scores else logits
    best = np.argsort(-(given + bias), axis=1, kind="stable")[:, :3]
    raw = np.take_along_axis(given, best, axis=1)
    raw = raw if weights == "sum" else np.exp(raw)
    np.testing.assert_array_equal(chosen, best)
    np.testing.assert_allclose(got, 0.5 * raw / raw.sum(axis=1, keepdims=True), rtol=1e-5)


def test_route_refuses_what_does_not_fit(full):
    with Context(full) as context:
        x, ids = context.zeros(3, 16), context.zeros(3, 4, dtype=I32)
        with pytest.raises(ShapeError, match="route: 4 of 600 experts, needs at most 32 of 512"):
            route(context.zeros(3, 600), ids)
        with pytest.raises(ShapeError, match=r"ids is \(4,\) of strides \(1,\), needs whole rows"):
            route(x, context.zeros(4, dtype=I32))
        with pytest.raises(ShapeError, match="scores 'sum' and weights ''"):
            route(x, ids, scores="sum")
        with pytest.raises(ShapeError, match=r"bias is \(4,\), x has 16 experts"):
            route(x, ids, context.zeros(4))


def test_the_graph_command_tells_who_makes_the_ids(full, monkeypatch, rng):
    monkeypatch.setattr(full, "rules", fusions(["route"], exact=True))
    logits, bias = drawn(rng, 3, 16)
    with Context(full) as context:
        x, table = (
            context.from_numpy(logits),
            context.from_numpy(rng.standard_normal((16, 5), "f4")),
        )
        ids, weights = routed("qwen3moe", x, 4, context.from_numpy(bias))
        outputs = [weights, table.rows(ids.reshape(-1))]
        recorded = context.record(*outputs)
        steps = describe_pass("", recorded.scheduled, recorded.plan, outputs, 2, full.capabilities)
        recorded.close()
    router, gather = steps.after.steps
    assert router.op == "route"
    assert {o.name: o.what for o in gather.operands}["ids"] == router.place
