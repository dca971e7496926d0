"""A layer of experts as models write it, with every rule, each left out, and none."""

import pytest

from tests.ops.fused import titled
from tests.ops.operands import tensor, weight_bytes
from tests.ops.test_experts import experts_of
from wgpu_backend.dtypes import MXFP4, Q8_0
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse

EXPERTS, USED, HIDDEN, INNER = 8, 3, 96, 64
BY_EXPERT = [f"linear_by_expert_{form}" for form in ("add", "gated", "tiles", "q8")]
RULES = ["route", *BY_EXPERT]
# Activations in eight bits; twice, as the second product rounds what the first made.
ROUNDED = 1e-3


class Mixture:
    """Weights of a layer, and the same ones in any context."""

    def __init__(self, rng, dtype):
        self.dtype = dtype
        self.router = rng.standard_normal((EXPERTS, HIDDEN), "f4") / 8
        self.gate, self.up = (
            weight_bytes(rng, EXPERTS * INNER, HIDDEN, dtype, HIDDEN**-0.5) for _ in range(2)
        )
        self.down = weight_bytes(rng, EXPERTS * HIDDEN, INNER, dtype, INNER**-0.5)
        self.biases = [rng.standard_normal((EXPERTS, n), "f4") for n in (INNER, INNER, HIDDEN)]

    def qwen3moe(self, ctx, x):
        scores = tensor(ctx, self.router).mulmat(x).softmax()
        ids = scores.top_k(USED)
        weights = scores.reshape(-1, EXPERTS, 1).rows(ids).reshape(-1, USED)
        weights = (weights / weights.sum_rows()).reshape(-1, USED, 1)
        gate, up, down = self._experts(ctx)
        rows = x.reshape(-1, 1, HIDDEN)
        inner = gate.mulmat_id(rows, ids).swiglu(up.mulmat_id(rows, ids))
        mixed = down.mulmat_id(inner, ids) * weights
        return mixed.sum(1)

    def gpt_oss(self, ctx, x):
        logits = tensor(ctx, self.router).mulmat(x)
        ids = logits.top_k(USED)
        weights = logits.reshape(-1, EXPERTS, 1).rows(ids).reshape(-1, USED).softmax()
        gate, up, down = self._experts(ctx)
        biases = [tensor(ctx, bias) for bias in self.biases]
        rows = x.reshape(-1, 1, HIDDEN)
        g = gate.mulmat_id(rows, ids).add_id(biases[0], ids)
        u = up.mulmat_id(rows, ids).add_id(biases[1], ids)
        inner = g.silu_alpha_limit(u, 1.702, 7.0)
        experts = down.mulmat_id(inner, ids).add_id(biases[2], ids)
        experts = experts * weights.reshape(-1, USED, 1)
        mixed = experts.slice(1, 0, 1)
        for i in range(1, USED):
            mixed = mixed + experts.slice(1, i, i + 1)
        return mixed.reshape(-1, HIDDEN)

    def _experts(self, ctx):
        shapes = ((INNER, HIDDEN, self.gate), (INNER, HIDDEN, self.up), (HIDDEN, INNER, self.down))
        return [experts_of(ctx, EXPERTS, m, k, self.dtype, data) for m, k, data in shapes]


def ran(executor, monkeypatch, rules, exact, model, x):
    monkeypatch.setattr(executor, "rules", fusions(rules, exact=exact))
    with Context(executor) as ctx:
        recorded = ctx.record(model(ctx, tensor(ctx, x)))
        names = [titled(node) for node, _ in recorded.plan.steps]
        # Twice: buffers hold what was there before, ids among it.
        recorded.run({}).wait()
        values = recorded.run({}).wait()[0]
        recorded.close()
    return names, values


@pytest.mark.parametrize("recipe", ["qwen3moe", "gpt_oss"])
@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize("off", ["none", "all", *RULES])
def test_a_layer_of_experts_is_the_same_without_a_rule(
    any_gpu, monkeypatch, rng, recipe, tokens, off
):
    model = getattr(Mixture(rng, MXFP4 if recipe == "gpt_oss" else Q8_0), recipe)
    x = rng.standard_normal((tokens, HIDDEN), "f4")
    with Context(NumpyExecutor()) as ctx:
        wanted = model(ctx, tensor(ctx, x)).numpy()
    left = () if off == "all" else [name for name in fused_names() if name != off]
    names, got = ran(any_gpu, monkeypatch, left, True, model, x)
    assert nmse(got, wanted) <= 1e-10
    assert ("route" in names) == (off not in ("all", "route"))
    _, got = ran(any_gpu, monkeypatch, left, False, model, x)
    assert nmse(got, wanted) <= ROUNDED


def fused_names():
    return sorted({rule.name for rules in fusions(exact=False).values() for rule in rules})
