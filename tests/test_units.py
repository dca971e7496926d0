"""Rounding for matrix units in whole models, also where a router's scores nearly tie."""

from collections import Counter

import numpy as np
import pytest

from tests import units
from tests.models import outlines
from tests.units import Choice, compared, simulated
from wgpu_backend.nn.mlp import Routing

LIMIT = 5e-6  # eleven bits of values, in a few layers
# Experts, windows, latents, groups of experts, and layers in parallel.
MODELS = ["cohere2moe", "deepseek3", "gpt-oss", "qwen3next"]


def row_of(tmp_path, name, tokens):
    path = tmp_path / f"{name}.gguf"
    units.writers()[name](path)
    return compared(path, simulated(), tokens, Counter())


@pytest.mark.parametrize("name", MODELS)
def test_models_are_as_near_as_f16_allows_but_for_ties_of_routers(tmp_path, rng, name):
    row = row_of(tmp_path, name, rng.integers(4, 250, units.PROMPT).tolist())
    assert (row.same or row.error) < LIMIT
    assert row.gap < 1e-2
    assert bool(row.others) == (row.same is not None)


def test_a_tie_is_found_where_routers_are_rounded_too(tmp_path, monkeypatch):
    monkeypatch.setattr(outlines, "KEPT", tuple(p for p in outlines.KEPT if "gate" not in p))
    row = row_of(tmp_path, "cohere2moe", units.prompt(0))
    # Token 24 has another expert in the second layer, and later tokens see it.
    assert row.error > 1e-4
    assert row.others
    assert row.gap < 1e-3
    assert row.same is not None
    assert row.same < LIMIT
    assert "apart" in row.line()


def test_choices_that_differ_are_counted_with_their_scores():
    scores = np.array([[0.5, 0.4, 0.3, 0.2], [0.1, 0.4, 0.396, 0.2]], "f4")
    other = scores.copy()
    other[1, 1:3] = 0.395, 0.4
    routing = Routing(experts=4, used=1)
    count, gap = Choice(routing, scores).apart(Choice(routing, other))
    assert (count, round(gap, 3)) == (1, 0.01)
    assert Choice(routing, scores).apart(Choice(routing, scores)) == (0, 0)


def test_groups_that_nearly_tie_are_named_in_place_of_their_experts():
    scores = np.array([[0.5, 0.1, 0.31, 0.28]], "f4")
    other = scores + np.array([[0, 0, 0, 0.02]], "f4")
    routing = Routing(experts=4, used=1, groups=2, groups_used=1)
    assert Choice(routing, scores).ids.tolist() == [[0]]
    assert Choice(routing, other).ids.tolist() == [[2]]
    count, gap = Choice(routing, scores).apart(Choice(routing, other))
    assert (count, round(gap, 4)) == (1, round((0.6 - 0.59) / 0.6, 4))
