"""How a step's tokens are shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wgpu_backend.engine.batching.loop import fair_shares, step_shares

counts = st.lists(st.integers(0, 5000), max_size=33)


@pytest.mark.parametrize(
    ("wanted", "budget", "given"),
    [
        ([], 256, []),
        ([10], 256, [10]),
        ([4000, 20], 256, [236, 20]),
        ([4000, 4000, 20], 256, [118, 118, 20]),
        ([5, 5, 5], 2, [1, 1, 0]),
        ([5, 0, 5], 7, [4, 0, 3]),
        ([7], 0, [0]),
    ],
)
def test_what_one_does_not_need_goes_to_the_others(wanted, budget, given):
    assert fair_shares(wanted, budget) == given


@given(counts, st.integers(0, 600))
def test_a_budget_is_spent_where_it_is_wanted_and_nobody_has_more_than_the_hungry(wanted, budget):
    given = fair_shares(wanted, budget)
    assert sum(given) == min(budget, sum(wanted))
    assert all(0 <= g <= w for g, w in zip(given, wanted, strict=True))
    hungry = [g for g, w in zip(given, wanted, strict=True) if g < w]
    assert max(given, default=0) <= min(hungry, default=5000) + 1


@given(counts, st.integers(33, 600))
def test_who_makes_tokens_always_gets_one(pending, budget):
    given = step_shares(pending, budget)
    assert all(g == 1 for g, p in zip(given, pending, strict=True) if p == 1)
    assert sum(given) <= budget


def test_a_short_prompt_is_read_in_its_first_step_beside_a_long_one_and_seven_answers():
    assert step_shares([4096, 40, *[1] * 7], 256) == [81, 40, *[1] * 7]
    assert step_shares([4096, 4096, *[1] * 7], 256) == [125, 124, *[1] * 7]
    assert step_shares([4096, 127, 1], 256) == [128, 127, 1]
