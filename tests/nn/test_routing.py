"""How experts are chosen and weighed, against NumPy written down from the papers."""

import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend import nn
from wgpu_backend.ml.context import Context

EXPERTS = 16


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def wanted(routing, logits, bias):
    """Ids in descending order and weights, a token at a time."""
    ids, weights = [], []
    for row in logits.astype(np.float64):
        scores = {"softmax": softmax, "sigmoid": sigmoid}.get(routing.scores, lambda x: x)(row)
        ranked = scores if bias is None else scores + bias
        groups = ranked.reshape(routing.groups, -1)
        best = np.sort(groups, axis=1)[:, -2:].sum(1)
        left_out = np.argsort(-best, kind="stable")[routing.groups_used :]
        groups = groups.copy()
        groups[left_out] = -np.inf
        chosen = np.argsort(-groups.reshape(-1), kind="stable")[: routing.used]
        w = scores[chosen]
        if routing.scores == "softmax of chosen":
            w = softmax(w)
        elif routing.normalised:
            w = w / w.sum()
        ids.append(chosen)
        weights.append(w * routing.scale)
    return np.array(ids), np.array(weights)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("scores", "normalised", "scale"),
    [
        ("softmax", True, 1.0),
        ("softmax", False, 16.0),
        ("sigmoid", True, 2.5),
        ("sigmoid", False, 1.0),
        ("softmax of chosen", True, 1.0),
    ],
)
@pytest.mark.parametrize(("groups", "groups_used"), [(1, 1), (4, 2), (8, 3)])
@pytest.mark.parametrize("tokens", [1, 33])
def test_experts_are_the_best_of_the_best_groups(
    executor, rng, scores, normalised, scale, biased, groups, groups_used, tokens
):
    routing = nn.Routing(EXPERTS, 4, scores, normalised, scale, groups, groups_used)
    logits = rng.standard_normal((tokens, EXPERTS), "f4")
    bias = rng.standard_normal(EXPERTS, "f4") if biased else None
    with Context(executor) as ctx:
        chosen = routing.choose(tensor(ctx, logits), None if bias is None else tensor(ctx, bias))
        ids, weights = (part.numpy() for part in chosen)
    want_ids, want_weights = wanted(routing, logits, bias)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_allclose(weights, want_weights, rtol=1e-5)
